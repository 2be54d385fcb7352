package lookaside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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

const (
	// maxAsked bounds the questions under way.
	maxAsked = 10_000
	// tripAfter is how many questions in a row go without an answer before the others are not asked, but for one every
	// probeAfter.
	tripAfter  = 5
	probeAfter = time.Second
	// lease is how long a server keeps a reservation without a report; renewEvery is how often leases are checked.
	lease      = 15 * time.Second
	renewEvery = time.Second
	// fullWait is how long a server keeps a question while all replicas are full, before it is asked anew.
	fullWait = 10 * time.Second
)

type (
	chooseRequest = warmpathv1.ChooseReplicaRequest
	chooseAnswer  = warmpathv1.ChooseReplicasResponse
)

// A Desk asks the server that a Watch follows where a call is to go, and holds what the server has reserved for this
// client. It outlives the streams. Safe for use by many goroutines.
//
// The rule. All questions of a channel go over one stream to the server that is followed, so that they fail over with
// the watch; reports of how the attempts end ride with them. The wait for an answer ends at the deadline. After
// [tripAfter] questions in a row without an answer the others are not asked, but for one every [probeAfter]. An answer
// that comes too late is given back. So each question is an attempt of its own: what is given back is never the
// reservation of a later one with the same request id.
type Desk struct {
	deployment string
	opened     chan struct{} // closed by open: there are questions to ask
	open       func()
	wake       chan struct{} // holds one: there is something to send

	mu      sync.Mutex           // guards the fields below and the Reservations; nothing is locked under it
	stream  asking               // nil = no server can be asked
	last    uint64               // number of a question
	waiting map[uint64]*question // for an answer, and where stream is nil for a stream
	outbox  []*question          // not sent yet; those that do not wait any more are not sent
	missed  int                  // questions in a row without an answer in time
	probe   time.Time            // when the next question is asked, once tripAfter are missed

	live    map[*Reservation]struct{}
	reports []*warmpathv1.LifeReport // to be sent
}

// An Answer is where a server sends a call.
type Answer struct {
	Replica string // id
	// Decision is the server's but for the replica; its reason is central, its rule the server's own.
	Decision policy.Decision
	// Prefill is the replica that prefills the request, PrefillDecision why that one; "" = the request is served whole.
	Prefill         string
	PrefillDecision policy.Decision
	// Reservation is that of all of this.
	Reservation *Reservation

	err error // instead of all that
}

// Legs are in which legs a request may be sent. The zero value is that it is served whole.
type Legs struct {
	Pair bool   // in two, if that costs less
	Only bool   // replicas that have a role do not serve it whole
	From string // id of the replica that has prefilled it: the decode leg alone; "" = none
}

// Errors of Ask, beside those of the context and the server's own statuses.
var (
	// ErrNoServer: no server is followed, or it does not decide for clients.
	ErrNoServer = errors.New("no look-aside server can be asked")
	// ErrLate: there was no answer in time, or there have been none lately.
	ErrLate = errors.New("the look-aside server does not answer in time")
)

// Ask asks for a replica for a request, of whose prompt it sends no more than the hashes, and waits for the answer
// until the deadline. While the server answers that all replicas are full it waits there, as long as the context
// lasts. Where no server can be asked, a patient request waits for one until the deadline. The replica is reserved
// until the Reservation is released.
func (d *Desk) Ask(
	ctx context.Context, deadline time.Duration, patient bool, q *policy.Request, prompt *policy.Hashed, legs Legs,
) (Answer, error) {
	parent, wait, last := traceparent(ctx), time.Duration(0), time.Now().Add(deadline)
	for {
		began, r := time.Now(), d.question(q, prompt, parent, wait)
		r.Pair, r.PairOnly, r.PrefilledBy = legs.Pair, legs.Only, legs.From
		a, err := d.ask(ctx, r, deadline+wait, patient)
		switch full := status.Code(err) == codes.ResourceExhausted; {
		case full && (wait == 0 || time.Since(began) >= wait/2): // else it is not the replicas that are full
			wait = fullWait
		case err == ErrNoServer && patient && began.Before(last): // the stream broke
		default:
			return a, err
		}
	}
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

// question is a request as a server is asked, which keeps it so long while all replicas are full. No prompt is in it.
func (d *Desk) question(
	q *policy.Request, prompt *policy.Hashed, parent string, wait time.Duration,
) *chooseRequest {
	key := &warmpathv1.RequestKey{
		RequestId: q.ID, Session: q.Session,
		ParentSession: q.Parent(), SessionFinal: q.State().Final, Model: q.Model, Adapter: q.Adapter, CacheSalt: q.CacheSalt,
		PromptTokens: uint32(max(q.PromptTokens, 0)),
	}
	if q.Priority != 0 {
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
	return &chooseRequest{
		Deployment: d.deployment, Key: key, Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Attempt: rand.Uint64(),
		Excluded: q.Exclude, Tried: q.State().Tried, LeaseMs: uint32(lease.Milliseconds()), MaxFallbacks: 1,
		WaitMs: uint32(wait.Milliseconds()), Traceparent: parent,
	}
}

type asking = warmpathv1.RoutingService_ChooseReplicasClient

// A question waits for its answer.
type question struct {
	number uint64
	choose *chooseRequest
	answer chan Answer // holds one
}

func newDesk(deployment string) *Desk {
	d := &Desk{
		deployment: deployment, opened: make(chan struct{}), wake: make(chan struct{}, 1),
		waiting: make(map[uint64]*question), live: make(map[*Reservation]struct{}),
	}
	d.open = sync.OnceFunc(func() { close(d.opened) })
	return d
}

// ask asks one question and waits for the answer. A server's failure is a status.
func (d *Desk) ask(ctx context.Context, r *chooseRequest, longest time.Duration, patient bool) (Answer, error) {
	q, err := d.put(r, patient)
	if err != nil {
		return Answer{}, err
	}
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case a := <-q.answer:
		return a, a.err
	case <-timer.C:
		err = ErrLate
	case <-ctx.Done():
		err = ctx.Err()
	}
	if d.leave(q, err) {
		return Answer{}, err
	}
	a := <-q.answer // it came in the same moment
	return a, a.err
}

// put has a question sent, a patient one once there is a stream.
func (d *Desk) put(r *chooseRequest, patient bool) (*question, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch {
	case d.stream == nil && !patient:
		return nil, ErrNoServer
	case d.missed >= tripAfter && now.Before(d.probe), len(d.waiting) >= maxAsked, len(d.outbox) >= maxAsked:
		return nil, ErrLate
	}
	d.probe = now.Add(probeAfter)
	d.last++
	q := &question{number: d.last, choose: r, answer: make(chan Answer, 1)}
	d.waiting[q.number] = q
	d.outbox = append(d.outbox, q)
	d.rouse()
	return q, nil
}

// leave ends the wait for an answer. It returns false if the answer has come.
func (d *Desk) leave(q *question, cause error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting[q.number] != q {
		return false
	}
	delete(d.waiting, q.number)
	if cause == ErrLate {
		d.missed++
		d.probe = time.Now().Add(probeAfter)
	}
	return true
}

// take passes an answer on. One that no call waits for is given back.
func (d *Desk) take(m *chooseAnswer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.waiting[m.GetNumber()]
	if q == nil {
		d.giveBack(m.GetChosen().GetReservation())
		return
	}
	delete(d.waiting, q.number)
	d.missed = 0
	a, err := d.read(m, int(q.choose.GetKey().GetPromptTokens()))
	a.err = err
	q.answer <- a
}

// read reads the server's answer to a question with a prompt of so many tokens, and enters the reservation in it.
// Called with mu held.
func (d *Desk) read(m *chooseAnswer, prompt int) (Answer, error) {
	if f := m.GetFailure(); f != nil {
		return Answer{}, status.Error(codes.Code(f.GetCode()), f.GetMessage())
	}
	a := m.GetChosen()
	id, from := a.GetReplica().GetId(), a.GetDecision()
	if id == "" || a.GetReservation().GetId() == "" {
		d.giveBack(a.GetReservation())
		return Answer{}, fmt.Errorf("%w: its answer names no replica or no reservation", ErrNoServer)
	}
	answer := Answer{Replica: id, Decision: decisionOf(from, a.GetReplica(), prompt)}
	uncached, at := &answer.Decision, id
	if answer.Prefill = a.GetPrefill().GetId(); answer.Prefill != "" {
		answer.PrefillDecision = decisionOf(a.GetPrefillDecision(), a.GetPrefill(), prompt)
		uncached, at = &answer.PrefillDecision, answer.Prefill
	}
	answer.Reservation = d.reserve(a.GetReservation(), id, at, int64(prompt-uncached.MatchedTokens), time.Now())
	return answer, nil
}

// decisionOf is a server's decision for a replica, which is left out, for a prompt of so many tokens.
func decisionOf(from *warmpathv1.Decision, at *warmpathv1.ChosenReplica, prompt int) policy.Decision {
	d := policy.Decision{
		Reason: policy.ReasonCentral, Rule: policy.Reason(cmp.Or(from.GetRule(), from.GetReason())),
		MatchedTokens: min(int(from.GetMatchedTokens()), prompt),
		Place:         int(max(from.GetPlace(), -1)),
		Queued:        time.Duration(min(from.GetQueuedUs(), 1<<40)) * time.Microsecond,
	}
	if rank := at.Rank; rank != nil {
		d.SetRank(int(min(*rank, maxRank)))
	}
	return d
}

// serve keeps a stream of questions to the server that is followed, once there is a Desk, until ctx ends.
func (d *Desk) serve(ctx context.Context, cc *grpc.ClientConn, retry time.Duration) {
	select {
	case <-d.opened:
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		_ = d.converse(ctx, cc)                           // calls are decided here meanwhile
		_ = pause.For(ctx, retry/2+rand.N(max(retry, 1))) // the loop sees the end
	}
}

// converse asks over one stream until it breaks.
func (d *Desk) converse(ctx context.Context, cc *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	adopted := metadata.AppendToOutgoingContext(ctx, warmpathv1.MetadataAdopted, "1")
	stream, err := warmpathv1.NewRoutingServiceClient(cc).ChooseReplicas(adopted)
	if err != nil {
		return err
	}
	d.begin(stream)
	defer d.end(stream)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() { // why it breaks shows in what is received
		defer cancel()
		_ = d.send(ctx, stream)
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		d.take(m)
	}
}

// begin asks over a stream from now on.
func (d *Desk) begin(stream asking) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangUp()
	d.stream, d.missed = stream, 0
	d.renew(time.Now())
}

// end asks no more over a stream.
func (d *Desk) end(stream asking) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stream == stream {
		d.hangUp()
	}
}

// hangUp ends the wait of all questions of a stream, and leaves those that wait for one. Called with mu held.
func (d *Desk) hangUp() {
	if d.stream == nil {
		return
	}
	for _, q := range d.waiting {
		q.answer <- Answer{err: ErrNoServer}
	}
	clear(d.waiting)
	d.stream, d.outbox = nil, nil
}

// forget is for another server, or another life of it: nothing was asked or is reserved there.
func (d *Desk) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangUp()
	clear(d.live)
	d.reports = nil
}

// rouse has send look at what there is to send.
func (d *Desk) rouse() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// send sends questions and reports until the stream breaks.
func (d *Desk) send(ctx context.Context, stream asking) error {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for {
		for _, m := range d.outgoing(stream) {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.wake:
		case now := <-renew.C:
			d.mu.Lock()
			d.renew(now)
			d.mu.Unlock()
		}
	}
}

// outgoing returns what is to be sent over the stream now: the questions, and the reports with the first of them.
func (d *Desk) outgoing(stream asking) []*warmpathv1.ChooseReplicasRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stream != stream {
		return nil
	}
	var all []*warmpathv1.ChooseReplicasRequest
	for _, q := range d.outbox {
		if d.waiting[q.number] == q {
			all = append(all, &warmpathv1.ChooseReplicasRequest{Number: q.number, Choose: q.choose})
		}
	}
	d.outbox = nil
	if len(all) == 0 && len(d.reports) > 0 {
		all = append(all, new(warmpathv1.ChooseReplicasRequest))
	}
	if len(all) > 0 {
		all[0].Lives, d.reports = d.reports, nil
	}
	return all
}
