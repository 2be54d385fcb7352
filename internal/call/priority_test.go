package call

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/routing"
)

func TestPriorityOfACall(t *testing.T) {
	b := &Binding{PriorityKey: "x-warmpath-priority"}
	for _, c := range []struct {
		md   []string
		want routing.Priority
	}{
		{nil, routing.PriorityNormal},
		{[]string{"x-warmpath-priority", "high"}, routing.PriorityHigh},
		{[]string{"X-Warmpath-Priority", "low"}, routing.PriorityLow},
		{[]string{"x-warmpath-priority", "urgent"}, routing.PriorityNormal},
		{[]string{"x-warmpath-priority", "urgent", "x-warmpath-priority", "low"}, routing.PriorityLow},
		{[]string{"priority", "high"}, routing.PriorityNormal},
	} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), c.md...)
		var q routing.Request
		b.ReadMetadata(ctx, nil, &q)
		require.Equal(t, c.want, q.Priority, "%v", c.md)
	}
}
