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
	"github.com/warmpath/warmpath/internal/router/part"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// maxAsked bounds the requests under way.
	maxAsked = 10_000
	// After tripAfter requests in a row without an answer in time, one request is sent every probeAfter. The others fail
	// at once.
	tripAfter  = 5
	probeAfter = time.Second
	// lease is how long a server keeps a reservation without a report; renewEvery is how often leases are checked.
	lease      = 15 * time.Second
	renewEvery = time.Second
	// fullWait is how long a request waits at the server while all replicas are full. Then it is sent again.
	fullWait = 10 * time.Second
)

type (
	chooseRequest = warmpathv1.ChooseReplicaRequest
	chooseAnswer  = warmpathv1.ChooseReplicasResponse
)

// A Central is a channel's side of mode central: it asks the server that a Watch follows for a replica for each call,
// and holds the reservations that the server has made. It outlives the streams. Safe for use by many goroutines.
//
// The rule. All requests of a channel go over one stream to the server that is followed, so that they fail over with
// the watch. Reports of how attempts end are sent with them. The wait for an answer ends at the deadline; a reservation
// that comes later is released. Each request is an attempt of its own, so that this never releases the reservation of a
// later request with the same id.
type Central struct {
	deployment string
	opened     chan struct{} // closed by open: there will be requests
	open       func()
	wake       chan struct{} // holds one: there is something to send

	mu      sync.Mutex       // guards the fields below and the Reservations; nothing is locked under it
	stream  chooseStream     // nil = no server can be asked
	last    uint64           // number of a request
	waiting map[uint64]*pick // for an answer, and where stream is nil for a stream
	unsent  []*pick          // to be sent, if they still wait then
	missed  int              // requests in a row without an answer in time
	probe   time.Time        // when the next request is sent, once tripAfter are missed

	live    map[*Reservation]struct{}
	reports []*lifeReport // to be sent
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
	// ErrLate: there was no answer in time, or tripAfter requests in a row have had none.
	ErrLate = errors.New("the look-aside server does not answer in time")
)

// Ask asks for a replica for a request, and waits for the answer until the deadline. Of the prompt it sends the hashes
// only. While all replicas are full the request waits at the server until the context ends. A patient request waits
// until the deadline for a server that can be asked. The replica is reserved until the Reservation is released.
func (c *Central) Ask(
	ctx context.Context, deadline time.Duration, patient bool, q *policy.Request, prompt *policy.Hashed, legs Legs,
) (Answer, error) {
	parent, wait, last := traceparent(ctx), time.Duration(0), time.Now().Add(deadline)
	for {
		began, r := time.Now(), c.request(q, prompt, parent, wait)
		r.Pair, r.PairOnly, r.PrefilledBy = legs.Pair, legs.Only, legs.From
		a, err := c.ask(ctx, r, deadline+wait, patient)
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

// request is the message for a request, without its prompt. wait is how long it waits at the server while all replicas
// are full.
func (c *Central) request(
	q *policy.Request, prompt *policy.Hashed, parent string, wait time.Duration,
) *chooseRequest {
	key := &warmpathv1.RequestKey{
		RequestId: q.ID, Session: q.Session,
		ParentSession: q.Parent(), SessionFinal: part.OfRequest(q).Final, Model: q.Model, Adapter: q.Adapter, CacheSalt: q.CacheSalt,
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
		Deployment: c.deployment, Key: key, Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Attempt: rand.Uint64(),
		Excluded: q.Exclude, Tried: part.OfRequest(q).Tried, LeaseMs: uint32(lease.Milliseconds()), MaxFallbacks: 1,
		WaitMs: uint32(wait.Milliseconds()), Traceparent: parent,
	}
}

type chooseStream = warmpathv1.RoutingService_ChooseReplicasClient

// A pick is a request that waits for its answer.
type pick struct {
	number uint64
	choose *chooseRequest
	answer chan Answer // holds one
}

func newCentral(deployment string) *Central {
	c := &Central{
		deployment: deployment, opened: make(chan struct{}), wake: make(chan struct{}, 1),
		waiting: make(map[uint64]*pick), live: make(map[*Reservation]struct{}),
	}
	c.open = sync.OnceFunc(func() { close(c.opened) })
	return c
}

// ask sends one request and waits for the answer. A server's failure is a status.
func (c *Central) ask(ctx context.Context, r *chooseRequest, longest time.Duration, patient bool) (Answer, error) {
	q, err := c.put(r, patient)
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
	if c.leave(q, err) {
		return Answer{}, err
	}
	a := <-q.answer // it came in the same moment
	return a, a.err
}

// put has a request sent, a patient one once there is a stream.
func (c *Central) put(r *chooseRequest, patient bool) (*pick, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case c.stream == nil && !patient:
		return nil, ErrNoServer
	case c.missed >= tripAfter && now.Before(c.probe), len(c.waiting) >= maxAsked, len(c.unsent) >= maxAsked:
		return nil, ErrLate
	}
	c.probe = now.Add(probeAfter)
	c.last++
	q := &pick{number: c.last, choose: r, answer: make(chan Answer, 1)}
	c.waiting[q.number] = q
	c.unsent = append(c.unsent, q)
	c.notify()
	return q, nil
}

// leave ends the wait for an answer. It returns false if the answer has come.
func (c *Central) leave(q *pick, cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[q.number] != q {
		return false
	}
	delete(c.waiting, q.number)
	if cause == ErrLate {
		c.missed++
		c.probe = time.Now().Add(probeAfter)
	}
	return true
}

// take passes an answer on. One that no call waits for is given back.
func (c *Central) take(m *chooseAnswer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.waiting[m.GetNumber()]
	if q == nil {
		c.giveBack(m.GetChosen().GetReservation())
		return
	}
	delete(c.waiting, q.number)
	c.missed = 0
	a, err := c.read(m, int(q.choose.GetKey().GetPromptTokens()))
	a.err = err
	q.answer <- a
}

// read reads the server's answer to a request with a prompt of so many tokens, and enters the reservation in it.
// Called with mu held.
func (c *Central) read(m *chooseAnswer, prompt int) (Answer, error) {
	if f := m.GetFailure(); f != nil {
		return Answer{}, status.Error(codes.Code(f.GetCode()), f.GetMessage())
	}
	a := m.GetChosen()
	id, from := a.GetReplica().GetId(), a.GetDecision()
	if id == "" || a.GetReservation().GetId() == "" {
		c.giveBack(a.GetReservation())
		return Answer{}, fmt.Errorf("%w: its answer names no replica or no reservation", ErrNoServer)
	}
	answer := Answer{Replica: id, Decision: decisionOf(from, a.GetReplica(), prompt)}
	uncached, at := &answer.Decision, id
	if answer.Prefill = a.GetPrefill().GetId(); answer.Prefill != "" {
		answer.PrefillDecision = decisionOf(a.GetPrefillDecision(), a.GetPrefill(), prompt)
		uncached, at = &answer.PrefillDecision, answer.Prefill
	}
	answer.Reservation = c.reserve(a.GetReservation(), id, at, int64(prompt-uncached.MatchedTokens), time.Now())
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

// serve keeps a stream to the server that is followed, from the first use of the Central until ctx ends.
func (c *Central) serve(ctx context.Context, cc *grpc.ClientConn, retry time.Duration) {
	select {
	case <-c.opened:
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		_ = c.overStream(ctx, cc)                         // calls are decided here meanwhile
		_ = pause.For(ctx, retry/2+rand.N(max(retry, 1))) // the loop sees the end
	}
}

// overStream sends requests over one stream until it breaks.
func (c *Central) overStream(ctx context.Context, cc *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	adopted := metadata.AppendToOutgoingContext(ctx, warmpathv1.MetadataAdopted, "1")
	stream, err := warmpathv1.NewRoutingServiceClient(cc).ChooseReplicas(adopted)
	if err != nil {
		return err
	}
	c.begin(stream)
	defer c.end(stream)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() { // why it breaks shows in what is received
		defer cancel()
		_ = c.send(ctx, stream)
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		c.take(m)
	}
}

// begin sends requests over this stream from now on.
func (c *Central) begin(stream chooseStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandon()
	c.stream, c.missed = stream, 0
	c.renew(time.Now())
}

// end sends no more requests over this stream.
func (c *Central) end(stream chooseStream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == stream {
		c.abandon()
	}
}

// abandon ends the wait of the requests of the stream. Those that wait for a stream go on. Called with mu held.
func (c *Central) abandon() {
	if c.stream == nil {
		return
	}
	for _, q := range c.waiting {
		q.answer <- Answer{err: ErrNoServer}
	}
	clear(c.waiting)
	c.stream, c.unsent = nil, nil
}

// forget drops requests and reservations: another server, or the same one after a restart, does not have them.
func (c *Central) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandon()
	clear(c.live)
	c.reports = nil
}

// notify wakes send.
func (c *Central) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// send sends requests and reports until the stream breaks.
func (c *Central) send(ctx context.Context, stream chooseStream) error {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for {
		for _, m := range c.outgoing(stream) {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
		case now := <-renew.C:
			c.mu.Lock()
			c.renew(now)
			c.mu.Unlock()
		}
	}
}

// outgoing returns the messages to send over the stream now: the requests, the first of them with all reports.
func (c *Central) outgoing(stream chooseStream) []*warmpathv1.ChooseReplicasRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != stream {
		return nil
	}
	var all []*warmpathv1.ChooseReplicasRequest
	for _, q := range c.unsent {
		if c.waiting[q.number] == q {
			all = append(all, &warmpathv1.ChooseReplicasRequest{Number: q.number, Choose: q.choose})
		}
	}
	c.unsent = nil
	if len(all) == 0 && len(c.reports) > 0 {
		all = append(all, new(warmpathv1.ChooseReplicasRequest))
	}
	if len(all) > 0 {
		all[0].Lives, c.reports = c.reports, nil
	}
	return all
}
