package channel

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/balancer/telemetry"
)

// A learner takes the least loaded, and counts what it is asked and told.
type learner struct{ asked, routed, ended int }

func (*learner) Uses() routing.Uses                                             { return 0 }
func (*learner) Prepare(context.Context, *routing.Request, *routing.View) error { return nil }
func (p *learner) Routed(*routing.Request, routing.Decision)                    { p.routed++ }
func (p *learner) Completed(*routing.Request, routing.Decision, routing.Outcome) {
	p.ended++
}

func (p *learner) Choose(q *routing.Request, v *routing.View) routing.Decision {
	p.asked++
	if r := v.LeastLoaded(q); r != nil {
		return routing.To(r, routing.ReasonLeastLoaded)
	}
	return routing.Wait()
}

// A duel is a call under way on r0, of two replicas.
type duel struct {
	*testing.T
	policy *learner
	router *routing.Router
	handle *Handle
	first  *Call
	reader *sdkmetric.ManualReader
}

func newDuel(t *testing.T, ratio float64) *duel {
	d := &duel{T: t, policy: new(learner), reader: sdkmetric.NewManualReader()}
	d.router = policytest.NewRouter(t, d.policy, policytest.Fleet(2))
	recorder, err := telemetry.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(d.reader)))
	require.NoError(t, err)
	dialects, err := dialect.NewTable()
	require.NoError(t, err)
	d.handle = NewHandle(recorder, nil)
	d.handle.Attach(&Binding{
		Router: d.router, Policy: "learner", Dialects: dialects, Telemetry: recorder,
		Retries: Retries{Ratio: ratio, QuarantineTTL: -1},
	})
	d.first = d.handle.NewCall(t.Context(), "/a/B", nil, true)
	require.NoError(t, d.first.Acquire(d.handle.Bound()))
	d.book(d.first)
	return d
}

// book is what a picker does, whose connections are all ready.
func (d *duel) book(c *Call) {
	d.Helper()
	_, ready, err := c.Book(c, nil, d.handle.Bound(), func(*routing.Replica) connectivity.State { return connectivity.Ready })
	require.NoError(d, err)
	require.True(d, ready)
}

func (d *duel) metric(name string) (sum int64) {
	var all metricdata.ResourceMetrics
	require.NoError(d, d.reader.Collect(d.Context(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == name {
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					sum += p.Value
				}
			}
		}
	}
	return sum
}

// left is how many retries the channel may still make.
func (d *duel) left() (n int) {
	r := d.handle.Retries()
	for n < 100 && d.handle.budget.take(time.Now(), r.Ratio, r.Floor) {
		n++
	}
	for range n {
		d.handle.budget.giveBack()
	}
	return n
}

func (d *duel) other() *routing.Replica { return d.router.View().ByID("r1") }

// What a second attempt that is not sent leaves behind: nothing.
func TestSecondAttemptsThatAreNotSent(t *testing.T) {
	t.Run("for want of a budget", func(t *testing.T) {
		d := newDuel(t, 0)
		_, err := d.first.Beside(routing.ReasonHedge, telemetry.RetryHedge)
		require.ErrorIs(t, err, ErrRetryBudget)
		require.Equal(t, learner{asked: 1, routed: 1}, *d.policy)
		require.EqualValues(t, 1, d.metric("warmpath.retries.over_budget"))
		require.Zero(t, d.metric("warmpath.retries"))
		require.Zero(t, d.other().Ongoing())
	})
	t.Run("since the other replica is full by its own word", func(t *testing.T) {
		d := newDuel(t, 3)
		b := new(routing.Booking)
		require.NoError(t, d.router.Pick(t.Context(), &routing.Request{Pin: "r1"}, b))
		b.Refused(routing.ReplicaReport{Ongoing: -1, QueuedTokens: -1})
		require.True(t, d.other().Full())
		routed := d.policy.routed
		_, err := d.first.Beside(routing.ReasonHedge, telemetry.RetryHedge)
		require.ErrorIs(t, err, routing.ErrFull)
		require.True(t, d.other().Full(), "its word holds")
		require.Equal(t, routed, d.policy.routed)
		require.Zero(t, d.metric("warmpath.retries"))
		require.Zero(t, d.metric("warmpath.retries.over_budget"))
		require.Equal(t, 3, d.left())
	})
	t.Run("since the call ended first", func(t *testing.T) {
		d := newDuel(t, 3)
		second, err := d.first.Beside(routing.ReasonHedge, telemetry.RetryHedge)
		require.NoError(t, err)
		require.Equal(t, 1, d.other().Ongoing())
		require.Equal(t, 2, d.left())
		second.End()
		second.End()
		require.Zero(t, d.other().Ongoing())
		require.Equal(t, learner{asked: 2, routed: 1}, *d.policy)
		require.Zero(t, d.metric("warmpath.retries"))
		require.Equal(t, 3, d.left())
	})
}

func TestSecondAttemptsThatAreSent(t *testing.T) {
	d := newDuel(t, 3)
	second, err := d.first.Beside(routing.ReasonHedge, telemetry.RetryHedge)
	require.NoError(t, err)
	require.Equal(t, 1, d.policy.routed)
	d.book(second)
	require.Equal(t, 2, d.policy.routed)
	require.EqualValues(t, 1, d.metric("warmpath.retries"))
	second.Finished(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	second.FirstMessage()
	second.End()
	require.Equal(t, 1, d.policy.ended)
	require.Equal(t, 2, d.left())
	require.Zero(t, d.other().Ongoing())
}

// Once the second attempt has failed too, the replica of the first is one that was tried, and no more than that.
func TestAttemptsAfterTheSecond(t *testing.T) {
	d := newDuel(t, 3)
	second, err := d.first.Beside("", telemetry.RetryTimeout)
	require.NoError(t, err)
	second.Replace(d.first)
	d.first.Finished(balancer.DoneInfo{Err: status.Error(codes.Canceled, "late"), BytesSent: true})
	d.first.Forget()
	d.book(second)
	require.Equal(t, "r1", second.Last().Replica.ID)
	second.Finished(balancer.DoneInfo{Err: status.Error(codes.Unavailable, "refused")})
	second.Next()
	d.router.SetConnected("r1", false)
	require.NoError(t, second.Acquire(d.handle.Bound()))
	d.book(second)
	require.Equal(t, "r0", second.Last().Replica.ID)
	second.Finished(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	second.FirstMessage()
	second.End()
	require.Zero(t, d.router.View().ByID("r0").Ongoing())
}

// A failed attempt is over when it ends, and not when the next one begins: a backoff may lie between.
func TestFailedAttemptsEndAtOnce(t *testing.T) {
	d := newDuel(t, 1)
	d.first.Finished(balancer.DoneInfo{Err: status.Error(codes.ResourceExhausted, "full"), BytesSent: true})
	require.Equal(t, 1, d.policy.ended)
	d.first.Next()
	d.first.End()
	require.Equal(t, 1, d.policy.ended)
}
