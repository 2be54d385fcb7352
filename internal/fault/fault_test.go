package fault

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
)

func TestOf(t *testing.T) {
	require.Equal(t, routing.NoFault, Of(nil))
	require.Equal(t, routing.NoFault, Of(errors.New("x")), "UNKNOWN")
	require.Equal(t, routing.TimedOut, Of(status.FromContextError(context.DeadlineExceeded).Err()))
	want := map[codes.Code]routing.Fault{
		codes.Unavailable: routing.Failed, codes.Internal: routing.Failed, codes.DataLoss: routing.Failed,
		codes.DeadlineExceeded: routing.TimedOut, codes.Canceled: routing.GivenUp,
	}
	for c := range codes.Unauthenticated + 1 {
		require.Equal(t, want[c], OfCode(c), c)
	}
}
