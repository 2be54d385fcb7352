package router

import (
	"errors"
	"testing"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// round is longer than the time between two looks at the fleet.
const round = 101 * time.Millisecond

var errFault = errors.New("the replica failed")

// harness is a Router with outlier detection, on a clock of its own.
type harness struct {
	*Router
	t   *testing.T
	now time.Time
}

// never is a timer on a clock that only the test moves.
func never(time.Duration, func()) func() { return func() {} }

func newHarness(t *testing.T, n int, set ...func(*Options)) *harness {
	w := &harness{t: t, now: time.Unix(1000, 0)}
	o := Options{Policy: choosing(leastOfTwo), Ejection: new(policy.Ejection), Now: func() time.Time { return w.now }, AfterFunc: never}
	for _, f := range set {
		f(&o)
	}
	w.Router = connected(t, o, members(n)...)
	return w
}

func (w *harness) pass(d time.Duration) { w.now = w.now.Add(d) }

// send picks, on this replica if one is named.
func (w *harness) send(on string) (*policy.Request, *Reservation) {
	q := answering(state.AnswerMessage, policy.Request{Pin: on})
	return q, pick(w.t, w.Router, q)
}

// fail lets one call on a replica fail.
func (w *harness) fail(on string) {
	w.end(on, policy.Outcome{Err: errFault, Sent: true, Fault: policy.Failed})
}

func (w *harness) end(on string, o policy.Outcome) {
	q, b := w.send(on)
	o.Usage = policy.NoUsage
	b.Release()
	w.Complete(q, b.Decision, o)
}

// serve lets one call be answered after this time.
func (w *harness) serve(on string, took time.Duration) {
	q, b := w.send(on)
	w.pass(took)
	w.finish(q, b)
}

func (w *harness) finish(q *policy.Request, b *Reservation) {
	took := b.Answered()
	b.Release()
	w.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: took, Usage: policy.NoUsage})
}

func (w *harness) condition(id string) outlier.State {
	c, _ := w.Outliers().State(w.Outlier(w.View().ByID(id)))
	return c
}

// picked counts the replicas of n requests that are answered at once.
func (w *harness) picked(n int) map[string]int {
	counts := map[string]int{}
	for range n {
		q, b := w.send("")
		counts[b.Decision.Replica.ID]++
		w.finish(q, b)
	}
	return counts
}

// probe picks until a half-open replica gets a request.
func (w *harness) probe(id string) (*policy.Request, *Reservation) {
	for range 500 {
		q, b := w.send("")
		if b.Decision.Replica.ID == id {
			return q, b
		}
		w.finish(q, b)
	}
	w.t.Fatalf("%s gets no probe", id)
	return nil, nil
}

// warm lets the Router learn how long first messages take.
func (w *harness) warm(took time.Duration) {
	for range 20 {
		for _, rep := range w.View().Replicas() {
			w.serve(rep.ID, took)
		}
	}
}

// answering returns the request, whose host learns in this way that the replica has answered.
func answering(how state.Answer, q policy.Request) *policy.Request {
	part.OfRequest(&q).Answer = how
	return &q
}
