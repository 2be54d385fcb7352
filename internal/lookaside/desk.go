package lookaside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/pause"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A Desk asks the server that a Watch follows where a call is to go. Safe for use by many goroutines.
//
// The rule. All questions of a channel go over one stream to the server that is followed, so that they fail over with
// the watch; reports of how the attempts end ride with them. The wait for an answer ends at the deadline, and much
// earlier where the server answers much faster as a rule. After [tripAfter] questions in a row without an answer the
// others are not asked, but for one every [probeAfter]. An answer that comes too late is given back. So each question
// is an attempt of its own: what is given back is never the reservation of a later one with the same request id.
type Desk struct {
	desk       *desk
	deployment string
	deadline   time.Duration
}

// desk is what the Desks of a Watch share. It outlives the streams.
type desk struct {
	reserved *reserved
	opened   chan struct{} // closed by open: there are questions to ask
	open     func()
	talking  atomic.Pointer[conversation] // nil = no server can be asked
}

func newDesk() *desk {
	d := &desk{reserved: newReserved(), opened: make(chan struct{})}
	d.open = sync.OnceFunc(func() { close(d.opened) })
	return d
}

// An Answer is where a server sends a call.
type Answer struct {
	Replica string // id
	// Decision is the server's but for the replica; its reason is central, its rule the server's own.
	Decision policy.Decision
	// Reservation is nil where the server has made none for this question.
	Reservation *Reservation
}

// Errors of Ask, beside those of the context and the server's own statuses.
var (
	// ErrNoServer: no server is followed, or it does not decide for clients.
	ErrNoServer = errors.New("no look-aside server can be asked")
	// ErrLate: there was no answer in time, or there have been none lately.
	ErrLate = errors.New("the look-aside server does not answer in time")
)

// lease is how long a server keeps a reservation without news of it.
const lease = 15 * time.Second

// fullWait is how long a server keeps a question while all replicas are full, before it is asked anew.
const fullWait = 10 * time.Second

// Ask asks for a replica for a request, of whose prompt it sends no more than the hashes. While the server answers that
// all replicas are full it waits there, as long as the context lasts. The replica is reserved until the Reservation is
// released.
func (d *Desk) Ask(ctx context.Context, q *policy.Request, prompt *policy.Hashed) (Answer, error) {
	life := d.desk.reserved.lived() // before the server is chosen
	c := d.desk.talking.Load()
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
	if d.desk.reserved.lived() != life { // the server is gone: the next one is sent this load in the reports
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
func (d *Desk) question(q *policy.Request, prompt *policy.Hashed, parent string) *warmpathv1.ChooseReplicaRequest {
	key := &warmpathv1.RequestKey{
		RequestId: q.ID, Session: q.Session, Model: q.Model, Adapter: q.Adapter, CacheSalt: q.CacheSalt,
		PromptTokens: uint32(max(q.PromptTokens, 0)), ExpectedOutputTokens: uint32(max(q.ExpectedOutput, 0)),
	}
	if q.Priority != policy.PriorityNormal {
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
		Deployment: d.deployment, Key: key, Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Attempt: rand.Uint64(),
		Excluded: q.Exclude, Tried: q.TriedIDs(), LeaseMs: uint32(lease.Milliseconds()), MaxFallbacks: 1,
		Traceparent: parent,
	}
}

// answer reads the server's answer, and enters the reservation in it.
func (d *Desk) answer(a *warmpathv1.ChooseReplicaResponse, q *policy.Request) (Answer, error) {
	id, from := a.GetReplica().GetId(), a.GetDecision()
	if id == "" || a.GetReservation().GetId() == "" {
		d.desk.reserved.drop(a.GetReservation())
		return Answer{}, fmt.Errorf("%w: its answer names no replica or no reservation", ErrNoServer)
	}
	rule := from.GetReason()
	if from.GetRule() != "" {
		rule = from.GetRule()
	}
	decision := policy.Decision{
		Reason: policy.ReasonCentral, Rule: policy.Reason(rule),
		MatchedTokens: int(min(from.GetMatchedTokens(), uint32(max(q.PromptTokens, 0)))),
		Place:         int(max(from.GetPlace(), -1)),
		Queued:        time.Duration(min(from.GetQueuedUs(), 1<<40)) * time.Microsecond,
	}
	if rank := a.GetReplica().Rank; rank != nil {
		decision.SetRank(int(min(*rank, maxRank)))
	}
	tokens := int64(max(q.PromptTokens-decision.MatchedTokens, 0))
	var x *Reservation
	if ours(a.GetReservation()) {
		x = d.desk.reserved.add(a.GetReservation(), id, tokens, time.Now())
	}
	return Answer{id, decision, x}, nil
}

// serve keeps a stream of questions to the server that is followed, until ctx ends.
func (d *desk) serve(ctx context.Context, cc *grpc.ClientConn, retry time.Duration) {
	for ctx.Err() == nil {
		err := d.converse(ctx, cc)
		rest := retry/2 + rand.N(retry)
		if status.Code(err) == codes.Unimplemented {
			rest = time.Minute // an older server
		}
		_ = pause.For(ctx, rest) // the loop sees the end
	}
}

// converse asks over one stream until it breaks.
func (d *desk) converse(ctx context.Context, cc *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	asking := metadata.AppendToOutgoingContext(ctx, warmpathv1.MetadataAdopted, "1")
	stream, err := warmpathv1.NewRoutingServiceClient(cc).ChooseReplicas(asking)
	if err != nil {
		cancel()
		return err
	}
	d.reserved.renew(time.Now())
	c := newConversation(d.reserved, ctx.Done())
	d.talking.Store(c)
	defer d.talking.CompareAndSwap(c, nil)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() {
		defer cancel()
		_ = c.send(ctx, stream) // why it broke shows in what is received
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		c.answered(m)
	}
}
