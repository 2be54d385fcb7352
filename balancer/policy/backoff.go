package policy

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Backoff is the wait before an attempt of a call. The first retry is made at once, the one after it waits for Initial,
// and each further one Multiplier times as long as the one before, up to Maximum. Its zero value is the default config.
type Backoff struct {
	// Initial is the first wait; 0 = 25ms, at most 1m.
	Initial Duration `json:"initial,omitempty"`
	// Multiplier is the ratio of a wait to the one before; 0 = 2, at least 1 and at most 100.
	Multiplier float64 `json:"multiplier,omitempty"`
	// Maximum bounds every wait; 0 = 500ms, or Initial where that is more; at most 1m.
	Maximum Duration `json:"maximum,omitempty"`
}

// withDefaults returns the config with every default written out.
func (b Backoff) withDefaults() Backoff {
	b.Initial = cmp.Or(b.Initial, Duration(25*time.Millisecond))
	b.Multiplier = cmp.Or(b.Multiplier, 2)
	b.Maximum = cmp.Or(b.Maximum, max(Duration(500*time.Millisecond), b.Initial))
	return b
}

// Wait returns the wait before a retry: 1 is the first one, which has none.
func (b Backoff) Wait(retry int) time.Duration {
	if retry <= 1 {
		return 0
	}
	b = b.withDefaults()
	wait := float64(b.Initial) * math.Pow(b.Multiplier, float64(retry-2))
	return time.Duration(min(wait, float64(b.Maximum)))
}

// validate checks the bounds of every field. The error names it.
func (b Backoff) validate() error {
	full := b.withDefaults()
	if full.Maximum < full.Initial && b.Maximum >= 0 {
		return fmt.Errorf("backoff.maximum: %v is less than initial, %v", b.Maximum, full.Initial)
	}
	return cmp.Or(
		within("backoff.initial", b.Initial, 0, Duration(time.Minute)),
		within("backoff.multiplier", full.Multiplier, 1, 100),
		within("backoff.maximum", b.Maximum, 0, Duration(time.Minute)),
	)
}
