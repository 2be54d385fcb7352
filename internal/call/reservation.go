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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
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
			b.Router.Prepare(c.Scope, q) // it may take longer than replicas are waited for
			asks := time.Now()
			if b.Probe(c.Scope, q) {
				defer b.Router.Load.Asked()
			}
			probed = time.Since(asks)
		}
		switch err := c.inLegs(b, func(ctx context.Context, legs *router.Legs) error {
			return b.Router.Reserve(ctx, q, &r.held, router.How{Backoff: backoff, Legs: legs})
		}); err {
		case nil:
		case router.ErrNotConnected, router.ErrConnecting, router.ErrClosed:
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

// inLegs has reserve reserve one replica for an attempt, or two for its legs. If the prompt is prefilled already, reserve
// reserves a decode replica only.
func (c *Call) inLegs(b *Binding, reserve func(context.Context, *router.Legs) error) error {
	if c.legs == nil && !b.Router.Fleet.Divided() {
		return reserve(c.Scope, nil)
	}
	if from, until := c.legs.from(); from != nil {
		c.legs.awaitAborts(c)
		ctx, cancel := context.WithDeadline(c, until)
		err := reserve(ctx, &router.Legs{From: from})
		cancel()
		if err == nil || c.Err() != nil {
			return err
		}
	}
	if c.legs != nil {
		c.legs.end()
		c.legs.awaitAborts(c)
	}
	var l *legs
	how := b.legs(&c.key.request)
	if how != nil {
		l = c.newLegs(b)
	}
	if l != nil {
		how.Prefill = &l.prefill.reserved.held
	}
	err := reserve(c, how)
	if err != nil || l != nil && !l.held(c, b) {
		l = nil
	}
	if l != c.legs {
		c.mu.Lock()
		c.legs = l
		c.mu.Unlock()
	}
	return err
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
	if r.server != nil {
		r.server.Released(nil)
		r.server = nil
	}
}

// Central is mode central of a channel: its look-aside server is asked where each call goes. Read only.
type Central struct {
	Server   *lookaside.Central
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
func (r *reservation) ask(c *Call, b *Binding, m *Central, q *policy.Request) (made bool, err error) {
	if len(b.Router.View().Connected()) == 0 {
		return false, nil // only gRPC can help
	}
	b.Router.Prepare(c.Scope, q)
	own := q.Exclude
	defer func() { q.Exclude = own }()
	for asked := 1; ; asked++ {
		var named string
		if named, err = r.askOnce(c, b, m, q); err == nil {
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
	case c.Err() != nil:
		return false, status.FromContextError(c.Err()).Err()
	case m.Closed:
		return false, status.Errorf(codes.Unavailable,
			"warmpath: the look-aside server does not decide, and mode is central_only: %v", err)
	}
	return false, nil
}

// askOnce reserves the replica that the server answers. named is that replica, even if it cannot be reserved.
func (r *reservation) askOnce(c *Call, b *Binding, m *Central, q *policy.Request) (named string, err error) {
	err = c.inLegs(b, func(ctx context.Context, legs *router.Legs) error {
		var asks lookaside.Legs
		if legs != nil {
			asks.Pair, asks.Only = legs.Prefill != nil, legs.Only
		}
		if legs != nil && legs.From != nil {
			asks.From = legs.From.ID
		}
		a, err := m.Server.Ask(ctx, m.Deadline, m.Closed, q, b.Router.PromptHashes(q), asks)
		if err != nil {
			return err
		}
		named = a.Replica
		how := router.How{Legs: legs, Assigned: &router.Assigned{Replica: a.Replica, Decision: a.Decision}}
		if a.Prefill != "" {
			how.Assigned.Prefill = &router.Assigned{Replica: a.Prefill, Decision: a.PrefillDecision}
		}
		if err = b.Router.Reserve(ctx, q, &r.held, how); err != nil {
			a.Reservation.Released(nil)
			return err
		}
		r.server = a.Reservation
		return nil
	})
	return named, err
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
	legs := part.OfRequest(q).Legs
	for _, r := range v.Replicas() {
		switch {
		case slices.Contains(q.Exclude, r.ID):
			causes["excluded by the call"]++
		case r.Draining:
			causes["draining"]++
		case r.Role == policy.RolePrefill, r.Role != "" && legs != nil && legs.Only:
			causes["for requests in two legs only"]++
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
