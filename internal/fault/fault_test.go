package fault

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/router/state"
)

func TestOf(t *testing.T) {
	require.Equal(t, state.NoFault, Of(nil))
	require.Equal(t, state.Doubtful, Of(errors.New("x")), "UNKNOWN")
	require.Equal(t, state.TimedOut, Of(status.FromContextError(context.DeadlineExceeded).Err()))
	want := map[codes.Code]state.Fault{
		codes.Unavailable: state.Failed, codes.Internal: state.Failed, codes.DataLoss: state.Failed,
		codes.DeadlineExceeded: state.TimedOut, codes.Canceled: state.GivenUp,
		codes.Unknown: state.Doubtful, codes.Unimplemented: state.Doubtful, codes.NotFound: state.Doubtful,
		codes.Unauthenticated: state.Doubtful, codes.PermissionDenied: state.Doubtful,
		codes.FailedPrecondition: state.Doubtful, codes.Aborted: state.Doubtful,
	}
	for c := range codes.Unauthenticated + 1 {
		require.Equal(t, want[c], OfCode(c), c)
	}
}
