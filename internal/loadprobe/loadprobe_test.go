package loadprobe

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a connection that answers GetLoads when the test lets it.
type engine struct {
	grpc.ClientConnInterface
	asked  chan string
	answer chan error
}

func (e engine) Invoke(ctx context.Context, method string, _, answer any, _ ...grpc.CallOption) error {
	e.asked <- method
	select {
	case err := <-e.answer:
		*answer.(*[]byte) = rank(map[protowire.Number]uint64{2: 5, 3: 2})
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bench is a Prober of one engine, with a clock that stands still.
type bench struct {
	*Prober
	engine
	replica *policy.Replica
	reports chan load.Report
	log     *bytes.Buffer

	mu  sync.Mutex
	now time.Time
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		engine:  engine{asked: make(chan string, 1), answer: make(chan error)},
		replica: policytest.NewRouter(t, policy.Policy{Choose: leastLoaded}, policytest.Fleet(1)).View().Replicas()[0],
		reports: make(chan load.Report, 1), log: new(bytes.Buffer), now: time.Unix(1000, 0),
	}
	logger, state := slog.New(slog.NewTextHandler(b.log, nil)), new(State)
	b.Prober = New(Options{
		Now:     func() time.Time { b.mu.Lock(); defer b.mu.Unlock(); return b.now },
		Connect: func(context.Context, string) (grpc.ClientConnInterface, error) { return b.engine, nil },
		State:   func(*policy.Replica) *State { return state },
		Logger:  func() *slog.Logger { return logger },
	})
	t.Cleanup(b.Close)
	return b
}

func (b *bench) advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

// ask asks, and returns whether it waited for an answer.
func (b *bench) ask(ctx context.Context) bool {
	return b.Ask(ctx, "grpc:vllm", b.replica, func(_ string, l load.Report) { b.reports <- l })
}

// ended is a context that does not wait.
func ended(t *testing.T) context.Context {
	ctx, end := context.WithCancel(t.Context())
	end()
	return ctx
}

// Many requests that ask at once make one probe, and its answer serves those of the next 100 ms.
func TestAnswersAreShared(t *testing.T) {
	b := newBench(t)
	waited := make(chan bool)
	for range 10 {
		go func() { waited <- b.ask(t.Context()) }()
	}
	require.Equal(t, "/vllm.grpc.engine.VllmEngine/GetLoads", <-b.asked)
	b.answer <- nil
	require.Equal(t, load.Report{Ongoing: 7, Waiting: 2, QueuedTokens: -1}, <-b.reports)
	any := false
	for range 10 {
		any = <-waited || any
	}
	require.True(t, any)
	b.advance(Fresh - 1)
	require.False(t, b.ask(t.Context()))
	b.advance(1)
	require.False(t, b.ask(ended(t)), "it does not wait, and asks all the same")
	<-b.asked
	b.answer <- nil
	<-b.reports
}

// An answer that is late counts, and no request waits for it that comes later.
func TestLateAnswers(t *testing.T) {
	b := newBench(t)
	require.False(t, b.ask(ended(t)))
	<-b.asked
	b.advance(MaxWait + 1)
	require.False(t, b.ask(t.Context()))
	b.answer <- nil
	require.Equal(t, 7, (<-b.reports).Ongoing)
}

// A replica that fails is asked less and less often, and logged once.
func TestFailures(t *testing.T) {
	b := newBench(t)
	for _, pause := range []time.Duration{1, 2, 4, 8, 10, 10} {
		go func() { <-b.asked; b.answer <- status.Error(codes.Unimplemented, "no such method") }()
		require.True(t, b.ask(t.Context()))
		b.advance(pause*time.Second - 1)
		require.False(t, b.ask(t.Context()), pause)
		b.advance(1)
	}
	require.Equal(t, 1, strings.Count(b.log.String(), "does not answer load_poll"), b.log.String())
	require.Contains(t, b.log.String(), "no such method")
	require.Empty(t, b.reports)
}

// Close ends what is under way, and nothing begins after it.
func TestClose(t *testing.T) {
	b := newBench(t)
	require.False(t, b.ask(ended(t)))
	<-b.asked
	b.Close()
	b.advance(time.Hour)
	b.ask(t.Context())
	require.Empty(t, b.asked)
	require.Empty(t, b.log.String())
}

// Replicas are asked until the policy chooses one again that has answered, and at most five.
func TestBefore(t *testing.T) {
	for _, tt := range []struct {
		idle string // has no load; the others have more than the policy of the test accepts
		want int
	}{{"r0", 1}, {"r2", 3}, {"r7", 5}} {
		r := policytest.NewRouter(t, policy.Policy{Uses: policy.UsesLoad, Choose: leastLoaded}, policytest.Fleet(8))
		var asked []string
		Before(t.Context(), r, new(policy.Request), func(rep *policy.Replica) bool {
			for _, id := range asked {
				if id == rep.ID {
					return false
				}
			}
			asked = append(asked, rep.ID)
			l := load.Report{Ongoing: 9}
			if rep.ID == tt.idle {
				l.Ongoing = 0
			}
			r.Report(rep.ID, l)
			return true
		})
		require.Len(t, asked, tt.want, asked)
		for _, rep := range r.View().Replicas() {
			require.Zero(t, rep.Ongoing(), "a question reserves nothing")
		}
	}
}

// leastLoaded takes the first of the least loaded.
func leastLoaded(_ *policy.Request, v policy.View) policy.Decision {
	best := v.Replicas()[0]
	for _, r := range v.Replicas() {
		if v.Load(r) < v.Load(best) {
			best = r
		}
	}
	return policy.To(best, policy.ReasonLeastLoaded)
}

func TestSourcesOfClients(t *testing.T) {
	require.NoError(t, Source("grpc:orca").Check())
	require.EqualError(t, Source("http://HOST/").Check(), `"http://HOST/" is none of [grpc:orca grpc:sglang grpc:vllm]`)
}
