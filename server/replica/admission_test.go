package replica

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func bounded(n int) Config { return Config{Replica: policy.Attributes{MaxOngoing: n}} }

// calls makes one call of each kind and returns its trailer and its error.
var calls = map[string]func(context.Context, *grpc.ClientConn) (metadata.MD, error){
	"unary": func(ctx context.Context, cc *grpc.ClientConn) (trailer metadata.MD, err error) {
		_, err = testpb.NewTestServiceClient(cc).UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Trailer(&trailer))
		return trailer, err
	},
	"stream": func(ctx context.Context, cc *grpc.ClientConn) (metadata.MD, error) {
		s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{})
		if err != nil {
			return nil, err
		}
		if _, err = s.Recv(); status.Code(err) == codes.Unknown {
			err = nil // io.EOF
		}
		return s.Trailer(), err
	},
}

func TestFullIsRefusedAtOnce(t *testing.T) {
	for kind, call := range calls {
		t.Run(kind, func(t *testing.T) {
			c := bounded(2)
			c.Counts = func(method string) bool { return method != testpb.TestService_EmptyCall_FullMethodName }
			r, err := New(c)
			require.NoError(t, err)
			m := newModel()
			conn, _, _ := serve(t, r, m)
			ended := make(chan error, 2)
			for range 2 {
				go func() { _, err := call(within(t), conn); ended <- err }()
				<-m.entered
			}
			require.Equal(t, 2, r.Ongoing())

			trailer, err := call(within(t), conn)
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
			require.ErrorContains(t, err, "max_ongoing_requests")
			require.Len(t, trailer.Get(warmpathv1.TrailerRejection), 1)
			var rejection warmpathv1.Rejection
			require.NoError(t, proto.Unmarshal([]byte(trailer.Get(warmpathv1.TrailerRejection)[0]), &rejection))
			require.EqualValues(t, 2, rejection.GetOngoing())
			require.EqualValues(t, 2, rejection.GetMaxOngoing())
			require.Empty(t, trailer.Get(warmpathv1.TrailerLoad))
			require.Empty(t, m.entered, "a refused call reached the handler")

			_, err = healthpb.NewHealthClient(conn).Check(within(t), &healthpb.HealthCheckRequest{})
			require.NoError(t, err, "health is answered when full")
			_, err = testpb.NewTestServiceClient(conn).EmptyCall(within(t), &testpb.Empty{}, grpc.Trailer(&trailer))
			require.NoError(t, err, "what does not count is answered when full")
			require.Empty(t, trailer.Get(warmpathv1.TrailerLoad))

			close(m.release)
			require.NoError(t, <-ended)
			require.NoError(t, <-ended)
			_, err = call(within(t), conn)
			require.NoError(t, err, "there is room again")
			require.Zero(t, r.Ongoing())
		})
	}
}

// However many calls come at once, no more than the bound are in the handlers, every admitted call is counted out,
// and calls that fit are never refused.
func TestBound(t *testing.T) {
	const bound = 4
	for _, callers := range []int{bound, 4 * bound} {
		r, err := New(bounded(bound))
		require.NoError(t, err)
		var now, most, served, refused atomic.Int64
		handler := func(context.Context, any) (any, error) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			now.Add(-1)
			served.Add(1)
			return nil, nil
		}
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range 500 {
					if _, err := r.unary(context.Background(), nil, &grpc.UnaryServerInfo{}, handler); err != nil {
						refused.Add(1)
					}
				}
			})
		}
		all.Wait()
		require.LessOrEqual(t, most.Load(), int64(bound))
		require.EqualValues(t, 500*callers, served.Load()+refused.Load())
		require.Zero(t, r.Ongoing())
		if callers == bound {
			require.Zero(t, refused.Load())
		}
	}
}

func TestHowACallEnds(t *testing.T) {
	t.Run("panic", func(t *testing.T) {
		r, err := New(bounded(1))
		require.NoError(t, err)
		require.Panics(t, func() {
			_, _ = r.unary(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { panic("x") })
		})
		require.Zero(t, r.Ongoing())
	})
	t.Run("cancel", func(t *testing.T) {
		r, err := New(bounded(1))
		require.NoError(t, err)
		m := newModel()
		conn, _, _ := serve(t, r, m)
		ctx, cancel := context.WithCancel(within(t))
		ended := make(chan error, 1)
		go func() { _, err := calls["stream"](ctx, conn); ended <- err }()
		<-m.entered
		cancel()
		require.Equal(t, codes.Canceled, status.Code(<-ended))
		eventually(t, "counted out", func() bool { return r.Ongoing() == 0 })
	})
	t.Run("no bound", func(t *testing.T) {
		r, err := New(Config{})
		require.NoError(t, err)
		for range 1000 {
			_, ok := r.enter()
			require.True(t, ok)
		}
	})
}
