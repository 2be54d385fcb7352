package channel

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/routing"
)

// priority returns the level in the queue that a call's metadata asks for; normal where
// they say nothing, or nothing that is a level.
func (b *Binding) priority(ctx context.Context) routing.Priority {
	for _, s := range metadata.ValueFromOutgoingContext(ctx, b.PriorityKey) {
		if p, err := routing.ParsePriority(s); err == nil {
			return p
		}
	}
	return routing.PriorityNormal
}
