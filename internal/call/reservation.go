package call

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/router"
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
func (r *reservation) make(ctx context.Context, b *Binding, q *policy.Request, backoff time.Duration) error {
	if b.Central != nil {
		if pause.For(ctx, backoff) != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		backoff = 0
	}
	began := b.Telemetry.Begin(ctx)
	made, err := r.ask(ctx, b, q)
	if !made && err == nil {
		if b.Central != nil {
			began = b.Telemetry.Begin(ctx)
		}
		switch err = b.Router.Reserve(ctx, q, &r.held, router.How{Backoff: backoff}); err {
		case nil:
			r.decidedHere(b, q)
		case router.ErrNotConnected, router.ErrClosed:
			return nil
		default:
			err = Status(Explain(err, q, b.Router.View()))
		}
	}
	if err != nil {
		return err
	}
	r.binding = b
	r.brought.Store(true)
	if d := &r.held.Decision; made || d.Queued == 0 {
		b.Telemetry.Picked(ctx, b.Policy, began, d.Queued)
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
	Desk *lookaside.Desk
	// Closed fails calls for which the server does not decide, with UNAVAILABLE; else the local policy decides.
	Closed bool
}

// errUnasked is the picker's error for a call for which only the server may decide. The retry loop, which can ask,
// tries again.
var errUnasked = errors.New("only the look-aside server may decide (mode: central_only), " +
	"and it was not asked for this attempt")

// asks returns how the server is asked for a request, nil if it is not to be.
func (b *Binding) asks(q *policy.Request) *Central {
	if b.Central == nil || q.Pin != "" || !b.Router.Rollout.Decides(q) {
		return nil
	}
	return b.Central
}

// decidedHere notes that the local policy decided where the server was to.
func (r *reservation) decidedHere(b *Binding, q *policy.Request) {
	if b.asks(q) == nil {
		return
	}
	d := &r.held.Decision
	if d.Rule == "" {
		d.Rule = d.Reason
	}
	d.Reason = policy.ReasonFallbackLocal
}

// ask has the look-aside server decide, and reserves the replica that it names. It returns false where the local policy
// is to decide. The error is a gRPC status.
func (r *reservation) ask(ctx context.Context, b *Binding, q *policy.Request) (made bool, err error) {
	m := b.asks(q)
	if m == nil || len(b.Router.View().Connected()) == 0 {
		return false, nil // only gRPC can help
	}
	b.Router.Prepare(ctx, q)
	named, err := r.askOnce(ctx, b, m, q)
	if named != "" && m.Closed {
		err = r.askForOthers(ctx, b, m, q, named, err)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, router.ErrClosed):
		return false, nil // gRPC meets the next Router
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
	a, err := m.Desk.Ask(ctx, q, b.Router.PromptHashes(q))
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

const (
	// maxAsked bounds the questions for one attempt, maxNamed the replicas that they exclude.
	maxAsked = 4
	maxNamed = 1000
)

// askForOthers asks again where only the server may decide and the replica that it named cannot be used from here, for
// the reason err: without that one, and without those that are not connected, which the server cannot see.
func (r *reservation) askForOthers(
	ctx context.Context, b *Binding, m *Central, q *policy.Request, named string, err error,
) error {
	own := q.Exclude
	defer func() { q.Exclude = own }()
	for asked := 1; err != nil && named != "" && asked < maxAsked && !errors.Is(err, router.ErrClosed); asked++ {
		all := append(slices.Clone(q.Exclude), named)
		if asked == 1 {
			for _, r := range b.Router.View().Replicas() {
				if !r.Connected() && len(all) < maxNamed-maxAsked {
					all = append(all, r.ID)
				}
			}
		}
		q.Exclude = all
		named, err = r.askOnce(ctx, b, m, q)
	}
	return err
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
	var excluded, draining, other int
	for _, r := range v.Replicas() {
		switch {
		case slices.Contains(q.Exclude, r.ID):
			excluded++
		case r.Draining:
			draining++
		default:
			other++
		}
	}
	var causes []string
	add := func(n int, cause string) {
		if n > 0 {
			causes = append(causes, fmt.Sprintf("%d %s", n, cause))
		}
	}
	add(excluded, "excluded by the call")
	add(draining, "draining")
	add(other, fmt.Sprintf("without the model %q", q.Model))
	return fmt.Errorf("%w: of %d, %s", err, len(v.Replicas()), strings.Join(causes, ", "))
}
