package fault

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestOf(t *testing.T) {
	require.Equal(t, policy.NoFault, Of(nil))
	require.Equal(t, policy.Doubtful, Of(errors.New("x")), "UNKNOWN")
	require.Equal(t, policy.TimedOut, Of(status.FromContextError(context.DeadlineExceeded).Err()))
	want := map[codes.Code]policy.Fault{
		codes.Unavailable: policy.Failed, codes.Internal: policy.Failed, codes.DataLoss: policy.Failed,
		codes.DeadlineExceeded: policy.TimedOut, codes.Canceled: policy.GivenUp,
		codes.Unknown: policy.Doubtful, codes.Unimplemented: policy.Doubtful, codes.NotFound: policy.Doubtful,
		codes.Unauthenticated: policy.Doubtful, codes.PermissionDenied: policy.Doubtful,
		codes.FailedPrecondition: policy.Doubtful, codes.Aborted: policy.Doubtful,
	}
	for c := range codes.Unauthenticated + 1 {
		require.Equal(t, want[c], OfCode(c), c)
	}
}
