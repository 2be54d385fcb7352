package call

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestPriorityOfACall(t *testing.T) {
	b := new(Binding)
	for _, c := range []struct {
		md   []string
		want int
	}{
		{nil, 0},
		{[]string{"x-warmpath-priority", "high"}, 1},
		{[]string{"X-Warmpath-Priority", "low"}, -1},
		{[]string{"x-warmpath-priority", "urgent"}, 0},
		{[]string{"x-warmpath-priority", "urgent", "x-warmpath-priority", "low"}, -1},
		{[]string{"priority", "high"}, 0},
	} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), c.md...)
		var q policy.Request
		b.ReadMetadata(ctx, nil, &q)
		require.Equal(t, c.want, q.Priority, "%v", c.md)
	}
}
