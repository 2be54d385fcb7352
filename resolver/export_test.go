package resolver

import "github.com/warmpath/warmpath/internal/lookaside"

// WithTiming makes servers count as lost sooner, so that tests end.
func WithTiming(t lookaside.Timing) ServerOption { return func(b *builder) { b.timing = t } }
