package call

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A reservation is the replica that is reserved for an attempt: in the channel's Router, and at a look-aside server
// where that decided. Call.mu guards it, but for make, while which the goroutine of the call has it.
type reservation struct {
	held    router.Reservation
	binding *Binding               // whose Router has it
	server  *lookaside.Reservation // nil = none
	full    *Binding               // of the picker that found all replicas full last
	brought atomic.Bool            // made by the interceptor and not used yet
}

// make reserves a replica, waiting in the queue where all are full. It reserves none where only gRPC can help.
func (r *reservation) make(c *Call, b *Binding, q *policy.Request, backoff time.Duration) error {
	asked, began, probed := false, b.Telemetry.Picking(c), time.Duration(0)
	m := b.asks(q)
	if m != nil {
		err := c.pause(backoff)
		if err == nil {
			asked, err = r.ask(c, b, m, q)
		}
		if err != nil {
			return err
		}
		backoff = 0
	}
	if !asked {
		if b.Probe != nil && backoff == 0 {
			b.Router.Prepare(c, q) // it may take longer than replicas are waited for
			asks := time.Now()
			b.Probe(c, q)
			probed = time.Since(asks)
		}
		switch err := b.Router.Reserve(c, q, &r.held, router.How{Backoff: backoff}); err {
		case nil:
		case router.ErrNotConnected, router.ErrClosed:
			return nil
		default:
			return Status(Explain(err, q, b.Router.View()))
		}
		if m != nil {
			r.decidedHere()
		}
	}
	r.binding = b
	r.brought.Store(true)
	if d := &r.held.Decision; asked || d.Queued == 0 {
		b.Telemetry.Picked(c, b.Policy, began, d.Queued+probed)
	}
	return nil
}

// drop gives back a reservation that no picker has used.
func (r *reservation) drop(q *policy.Request) {
	if r.brought.Swap(false) {
		r.giveBack(q)
	}
}

// giveBack releases a reservation that was not sent, and the server's.
func (r *reservation) giveBack(q *policy.Request) {
	r.held.Withdraw(q)
	r.server.Released(nil)
	r.server = nil
}

// Central is mode central of a channel: its look-aside server is asked where each call goes. Read only.
type Central struct {
	Desk     *lookaside.Desk
	Deadline time.Duration // longest wait for the answer
	// Closed fails calls for which the server does not decide, with UNAVAILABLE; else the local policy decides.
	Closed bool
}

// errUnasked is the picker's error for a call for which only the server may decide. The retry loop, which can ask,
// tries again.
var errUnasked = errors.New("only the look-aside server may decide (mode: central_only), " +
	"and it was not asked for this attempt")

// asks returns how the server is asked for a request, nil if it is not to be.
func (b *Binding) asks(q *policy.Request) *Central {
	if b.Central == (Central{}) || q.Pin != "" || !b.Router.Rollout.Decides(q) {
		return nil
	}
	return &b.Central
}

// decidedHere notes that the local policy decided where the server was to.
func (r *reservation) decidedHere() {
	d := &r.held.Decision
	d.Rule = cmp.Or(d.Rule, d.Reason)
	d.Reason = policy.ReasonFallbackLocal
}

const (
	// maxAsked bounds the questions for one attempt, maxNamed the replicas that they exclude.
	maxAsked = 4
	maxNamed = 1000
)

// ask has the look-aside server decide, and reserves the replica that it names. It returns false where the local policy
// is to decide. Where only the server may, and the replica cannot be used from here, it is asked again: without that
// one, and without those that are not connected, which the server cannot see. The error is a gRPC status.
func (r *reservation) ask(ctx context.Context, b *Binding, m *Central, q *policy.Request) (made bool, err error) {
	if len(b.Router.View().Connected()) == 0 {
		return false, nil // only gRPC can help
	}
	b.Router.Prepare(ctx, q)
	own := q.Exclude
	defer func() { q.Exclude = own }()
	for asked := 1; ; asked++ {
		var named string
		if named, err = r.askOnce(ctx, b, m, q); err == nil {
			return true, nil
		}
		if errors.Is(err, router.ErrClosed) {
			return false, nil // gRPC meets the next Router
		}
		if named == "" || !m.Closed || asked == maxAsked {
			break
		}
		q.Exclude = append(slices.Clone(q.Exclude), named)
		for _, r := range b.Router.View().Replicas() {
			if asked == 1 && !r.Connected() && len(q.Exclude) < maxNamed-maxAsked {
				q.Exclude = append(q.Exclude, r.ID)
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return false, status.FromContextError(ctx.Err()).Err()
	case m.Closed:
		return false, status.Errorf(codes.Unavailable,
			"warmpath: the look-aside server does not decide, and mode is central_only: %v", err)
	}
	return false, nil
}

// askOnce reserves what the server answers. The replica is the one that it named, also where that cannot be reserved.
func (r *reservation) askOnce(
	ctx context.Context, b *Binding, m *Central, q *policy.Request,
) (named string, err error) {
	a, err := m.Desk.Ask(ctx, m.Deadline, q, b.Router.PromptHashes(q))
	if err != nil {
		return "", err
	}
	how := router.How{Assigned: &router.Assigned{Replica: a.Replica, Decision: a.Decision}}
	if err := b.Router.Reserve(ctx, q, &r.held, how); err != nil {
		a.Reservation.Released(nil)
		return a.Replica, err
	}
	r.server = a.Reservation
	return a.Replica, nil
}

// Status turns an error of the Router into a gRPC status that names what to change.
func Status(err error) error {
	var wait *router.WaitError
	switch {
	case errors.Is(err, router.ErrFull), errors.Is(err, router.ErrQueueFull):
		return status.Error(codes.ResourceExhausted, "warmpath: "+err.Error())
	case errors.As(err, &wait):
		return status.Error(status.FromContextError(wait.Cause).Code(), "warmpath: "+err.Error())
	}
	return status.Error(codes.Unavailable, "warmpath: "+err.Error())
}

// Explain adds to router.ErrNoSuchReplica what keeps the request from the replicas of the fleet. Other errors it
// returns as they are.
func Explain(err error, q *policy.Request, v policy.View) error {
	if err != router.ErrNoSuchReplica {
		return err
	}
	if q.Pin != "" {
		why := "it excludes"
		switch r := v.ByID(q.Pin); {
		case r == nil:
			why = "is not in the fleet"
		case r.Draining:
			why = "drains"
		}
		return fmt.Errorf("%w: it is pinned to %q, which %s", err, q.Pin, why)
	}
	causes := make(map[string]int)
	for _, r := range v.Replicas() {
		switch {
		case slices.Contains(q.Exclude, r.ID):
			causes["excluded by the call"]++
		case r.Draining:
			causes["draining"]++
		default:
			causes[fmt.Sprintf("without the model %q", q.Model)]++
		}
	}
	why := fmt.Sprintf("of %d", len(v.Replicas()))
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		why += fmt.Sprintf(", %d %s", causes[cause], cause)
	}
	return fmt.Errorf("%w: %s", err, why)
}

// An outcome is how the last attempt went. Call.mu guards it.
type outcome struct {
	last    attempt
	result  policy.Outcome // of the last reservation, with the usage in the messages
	pending bool           // it is still to be reported
	began   time.Duration  // since started, where the Router does not measure how long the first message takes; else 0
}

// started is when the program started.
var started = time.Now()

// An attempt is what the retry loop looks at.
type attempt struct {
	Replica *policy.Replica // nil when none was picked
	Full    bool            // the channel's picker found every replica full
	Refused bool            // the replica refused the request with warmpath's trailer since it is full

	// How it ended; zero = it has not.
	BytesSent     bool
	BytesReceived bool // something of an answer came, headers at least
	statusAlone   bool // the replica answered with a status in place of headers and messages
	Err           error

	breaks uint64 // of connections, before it began
}

// ended notes how the attempt ended. An answer without headers and messages has its content type in the trailer.
func (a *attempt) ended(i balancer.DoneInfo) {
	a.Err, a.BytesSent, a.BytesReceived = i.Err, i.BytesSent, i.BytesReceived
	a.statusAlone = len(i.Trailer["content-type"]) > 0
}

// NoteQuick records a quick pick. It builds a decision only where that is observed.
func NoteQuick(attempt context.Context, b *Binding, q *policy.Request, r *policy.Replica, why policy.Reason) {
	if trace.SpanFromContext(attempt).IsRecording() || b.Telemetry.Counts(attempt) {
		d := policy.To(r, why)
		b.Telemetry.Decided(attempt, nil, b.Policy, q, &d)
	}
}

// FailedQuick ends the quick reservation of a failed attempt, and gives the Router what the replica reported if it
// refused.
func FailedQuick(r *router.Quick, replica *policy.Replica, done balancer.DoneInfo) {
	if report, ok := refusal(done); ok {
		r.Refused(replica, report)
		return
	}
	r.Release(replica)
}

// refusal returns what a replica reported that refused because it is full. A plain RESOURCE_EXHAUSTED may be anything,
// and so may one that names no bound.
func refusal(done balancer.DoneInfo) (report load.Report, ok bool) {
	if done.Err == nil {
		return load.Report{}, false
	}
	raw := done.Trailer[warmpathv1.TrailerRejection]
	var r warmpathv1.Rejection
	if len(raw) == 0 || status.Code(done.Err) != codes.ResourceExhausted ||
		proto.Unmarshal([]byte(raw[0]), &r) != nil || r.GetMaxOngoing() == 0 {
		return load.Report{}, false
	}
	return load.Report{Ongoing: int(r.GetOngoing()), QueuedTokens: -1}, true
}
