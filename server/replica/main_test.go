package replica

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

func TestMain(m *testing.M) {
	leaveTimeout = time.Minute // however long this process stands still
	goleak.VerifyTestMain(m)
}

// timers is a clock that does not move: a timer waits until a test fires it.
type timers struct {
	mu      sync.Mutex
	waiting []timer
}

type timer struct {
	d time.Duration
	c chan time.Time
}

func (a *timers) after(d time.Duration) <-chan time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := make(chan time.Time, 1)
	a.waiting = append(a.waiting, timer{d, c})
	return c
}

// fire waits until a timer of d is set, and fires the first of them.
func (a *timers) fire(t *testing.T, d time.Duration) {
	t.Helper()
	eventually(t, "a timer of "+d.String(), func() bool { return a.tryFire(d) })
}

func (a *timers) tryFire(d time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.waiting, func(w timer) bool { return w.d == d })
	if i < 0 {
		return false
	}
	a.waiting[i].c <- time.Time{}
	a.waiting = slices.Delete(a.waiting, i, i+1)
	return true
}

// await waits until n timers of d are set.
func (a *timers) await(t *testing.T, d time.Duration, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d wait for %v", n, d), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		found := 0
		for _, w := range a.waiting {
			if w.d == d {
				found++
			}
		}
		return found == n
	})
}

// stopped returns a replica whose clock does not move.
func stopped(t *testing.T, c Config) (*Replica, *timers) {
	t.Helper()
	r, err := New(c)
	require.NoError(t, err)
	clock := new(timers)
	r.after, r.jitter = clock.after, func(d time.Duration) time.Duration { return d }
	return r, clock
}

// model is a model server: its calls last until they are let go.
type model struct {
	testpb.UnimplementedTestServiceServer
	entered chan struct{}
	release chan struct{}
}

func newModel() *model {
	return &model{entered: make(chan struct{}, 100), release: make(chan struct{})}
}

func (m *model) hold(ctx context.Context) error {
	m.entered <- struct{}{}
	select {
	case <-m.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *model) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{}, m.hold(ctx)
}

func (m *model) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	return m.hold(s.Context())
}

func (m *model) EmptyCall(context.Context, *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, nil
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// serve runs Serve with a model on loopback. It returns a connection to it, what ends it, and what it returned.
func serve(t *testing.T, r *Replica, m *model) (conn *grpc.ClientConn, end func(), ended <-chan error) {
	t.Helper()
	s := grpc.NewServer(r.ServerOptions()...)
	testpb.RegisterTestServiceServer(s, m)
	l := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, s, l) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), plain)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		s.Stop()
	})
	return conn, cancel, done
}

var plain = grpc.WithTransportCredentials(insecure.NewCredentials())

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, time.Millisecond, what)
}
