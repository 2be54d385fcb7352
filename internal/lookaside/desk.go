package lookaside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A Desk asks the server that a Watch follows where a call is to go. Safe for use by many goroutines.
//
// The rule. All questions of a channel go over one stream to the server that is followed, so that they fail over with
// the watch; reports of what became of the answers ride with them. An answer is waited for until the deadline, and much
// shorter where the server answers much faster as a rule. After [tripAfter] questions in a row without an answer the
// others are not asked, but for one every [probeAfter]. An answer that comes too late is given back; so each question is an
// attempt of its own, lest what it gives back be that of a later one with the same request id.
type Desk struct {
	watch    *Watch
	deadline time.Duration
}

// Desk returns what asks the servers of the watch, waiting so long for an answer at most.
func (w *Watch) Desk(deadline time.Duration) *Desk {
	w.wantDesk()
	return &Desk{watch: w, deadline: deadline}
}

// An Answer is where a server wants a call to go.
type Answer struct {
	Replica string // id
	// Decision is the server's but for the replica; its reason is central, its rule the server's own.
	Decision routing.Decision
	// Reservation is nil where the server has made none for this question.
	Reservation *Reservation
}

// Errors of Ask, beside those of the context and the server's own statuses.
var (
	// ErrNoServer: no server is followed, or it does not decide for others.
	ErrNoServer = errors.New("no look-aside server can be asked")
	// ErrLate: there was no answer in time, or there have been none lately.
	ErrLate = errors.New("the look-aside server does not answer in time")
)

// lease is how long a reservation is asked to last without news.
const lease = 15 * time.Second

// fullWait is how long a server is asked to keep a question whose replicas are all full, before it is asked anew.
const fullWait = 10 * time.Second

// Ask asks for a replica for a request, of whose prompt it sends no more than the hashes. While the server says that all
// replicas are full it waits there, as long as the context lasts. What is answered is reserved until the Reservation is
// released.
func (d *Desk) Ask(ctx context.Context, q *routing.Request, prompt *routing.Hashed) (Answer, error) {
	life := d.watch.reserved.lived() // before it is known who is asked
	c := d.watch.talking.Load()
	if c == nil {
		return Answer{}, ErrNoServer
	}
	parent := traceparent(ctx)
	r := d.question(q, prompt, parent)
	a, err := c.ask(ctx, r, d.deadline)
	began := time.Now()
	for status.Code(err) == codes.ResourceExhausted {
		r = d.question(q, prompt, parent)
		r.WaitMs = uint32(fullWait.Milliseconds())
		a, err = c.ask(ctx, r, d.deadline)
		if err != nil && time.Since(began) < fullWait/2 {
			break // it is not the replicas that are full
		}
		began = time.Now()
	}
	if err != nil {
		return Answer{}, err
	}
	answer, err := d.answer(a, q)
	if d.watch.reserved.lived() != life { // it is of a server that is gone, and we are to tell the next of the booking
		answer.Reservation.Released(nil)
	}
	return answer, err
}

// traceparent is the trace that a call is part of, as W3C writes it; empty = none.
func traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := make(propagation.MapCarrier, 1)
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// question is a request as a server is asked. No prompt is in it.
func (d *Desk) question(q *routing.Request, prompt *routing.Hashed, parent string) *warmpathv1.ChooseReplicaRequest {
	key := &warmpathv1.RequestKey{
		RequestId: q.ID, Session: q.Session, Model: q.Model, Adapter: q.Adapter, CacheSalt: q.CacheSalt,
		PromptTokens: uint32(max(q.PromptTokens, 0)), ExpectedOutputTokens: uint32(max(q.ExpectedOutput, 0)),
	}
	if q.Priority != routing.PriorityNormal {
		key.Priority = warmpathv1.Priority_PRIORITY_NORMAL + warmpathv1.Priority(q.Priority)
	}
	if prompt != nil {
		hashes := &warmpathv1.BlockHashes{Hashes: prompt.Hashes, Length: uint64(prompt.Length)}
		if prompt.Unit == 1 {
			hashes.Block = &warmpathv1.BlockHashes_BlockTokens{BlockTokens: uint32(prompt.Size)}
		} else {
			hashes.Block = &warmpathv1.BlockHashes_BlockBytes{BlockBytes: uint32(prompt.Size)}
		}
		key.Prompt = &warmpathv1.RequestKey_BlockHashes{BlockHashes: hashes}
	}
	return &warmpathv1.ChooseReplicaRequest{
		Deployment: d.watch.o.Deployment, Key: key, Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Attempt: rand.Uint64(),
		Excluded: q.Exclude, Tried: q.TriedIDs(), LeaseMs: uint32(lease.Milliseconds()), MaxFallbacks: 1,
		Traceparent: parent,
	}
}

func (d *Desk) answer(a *warmpathv1.ChooseReplicaResponse, q *routing.Request) (Answer, error) {
	id, told := a.GetReplica().GetId(), a.GetDecision()
	if id == "" || a.GetReservation().GetId() == "" {
		d.watch.reserved.drop(a.GetReservation())
		return Answer{}, fmt.Errorf("%w: its answer names no replica or no reservation", ErrNoServer)
	}
	rule := told.GetReason()
	if told.GetRule() != "" {
		rule = told.GetRule()
	}
	decision := routing.Decision{
		Reason: routing.ReasonCentral, Rule: routing.Reason(rule),
		MatchedTokens: int(min(told.GetMatchedTokens(), uint32(max(q.PromptTokens, 0)))),
		Place:         int(max(told.GetPlace(), -1)),
		Queued:        time.Duration(min(told.GetQueuedUs(), 1<<40)) * time.Microsecond,
	}
	if rank := a.GetReplica().Rank; rank != nil {
		decision.SetRank(int(min(*rank, maxRank)))
	}
	tokens := int64(max(q.PromptTokens-decision.MatchedTokens, 0))
	var x *Reservation
	if ours(a.GetReservation()) {
		x = d.watch.reserved.add(a.GetReservation(), id, tokens, time.Now())
	}
	return Answer{id, decision, x}, nil
}
