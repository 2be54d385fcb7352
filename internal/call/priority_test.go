package call

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestPriorityOfACall(t *testing.T) {
	b := &Binding{PriorityKey: "x-warmpath-priority"}
	for _, c := range []struct {
		md   []string
		want policy.Priority
	}{
		{nil, policy.PriorityNormal},
		{[]string{"x-warmpath-priority", "high"}, policy.PriorityHigh},
		{[]string{"X-Warmpath-Priority", "low"}, policy.PriorityLow},
		{[]string{"x-warmpath-priority", "urgent"}, policy.PriorityNormal},
		{[]string{"x-warmpath-priority", "urgent", "x-warmpath-priority", "low"}, policy.PriorityLow},
		{[]string{"priority", "high"}, policy.PriorityNormal},
	} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), c.md...)
		var q policy.Request
		b.ReadMetadata(ctx, nil, &q)
		require.Equal(t, c.want, q.Priority, "%v", c.md)
	}
}
