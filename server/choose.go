package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/sharedstore"
	"github.com/warmpath/warmpath/internal/httpendpoint"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// defaultFallbacks is how many fallbacks who does not say is given.
const defaultFallbacks = 2

// ChooseReplica implements the service. It makes a span, with the decision on it.
func (s *Server) ChooseReplica(ctx context.Context, r *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error) {
	ctx, end := s.span(ctx, r.GetTraceparent())
	a, err := s.choose(ctx, r)
	end(err)
	return a, err
}

func (s *Server) choose(ctx context.Context, r *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error) {
	var q policy.Request
	if err := decodeKey(r, &q); err != nil {
		return nil, err
	}
	p := s.principalOf(ctx)
	d, base, adapter, err := s.meant(p, r.GetDeployment(), q.Model)
	if err != nil {
		return nil, err
	}
	q.Principal = p.name
	q.Model, q.Adapter = d.catalogue.Load().canonical(base), cmp.Or(q.Adapter, adapter)
	q.SetOrigin(originOf(ctx))
	q.Resume(d.hosted.Load().router.View(), r.GetTried())
	if adopted(ctx) {
		q.Adopt()
	} else if q.PromptTokens == 0 && d.hosted.Load().needsPrompt() { // a client that has the config has looked already
		d.tally.failed(codes.InvalidArgument)
		return nil, invalid("deployment %s has require_prompt, and the request has no prompt", d.name)
	}
	a, err := d.picks.choose(ctx, p, r, &q)
	if err != nil {
		err = d.picks.status(err)
		d.tally.failed(status.Code(err))
		return nil, err
	}
	if !p.trusted() {
		a = withheld(a)
	}
	return a, nil
}

// asking is the metadata of a question that came over gRPC, without the message that it is about.
type asking struct{ context.Context }

// Message implements policy.Origin.
func (asking) Message() any { return nil }

// Header implements policy.Origin.
func (a asking) Header(key string) []string { return metadata.ValueFromIncomingContext(a, key) }

// originOf returns what a question came with.
func originOf(ctx context.Context) policy.Origin {
	if o := httpendpoint.Origin(ctx); o != nil {
		return o
	}
	return asking{ctx}
}

// picks answers the questions of one deployment, and holds what it books for them. Safe for use by many goroutines; its
// leases have their own lock.
type picks struct {
	name   string
	log    *slog.Logger
	now    func() time.Time
	hosted *atomic.Pointer[hosted]
	limits *atomic.Pointer[Config]
	tally  *tally
	leases leases
	store  *sharedstore.Memory // what custom policies share

	recorder *telemetry.Recorder // set before the deployment is used, or never
}

// choose picks, waiting as long as the question says, and books for as long as the mode says.
func (k *picks) choose(ctx context.Context, p *principal, r *warmpathv1.ChooseReplicaRequest, q *policy.Request) (*warmpathv1.ChooseReplicaResponse, error) {
	reserves := r.GetMode() == warmpathv1.PickMode_PICK_MODE_RESERVE
	name := leaseName{by: p}
	if reserves && q.ID != "" {
		name.request, name.attempt = q.ID, r.GetAttempt()
	}
	waits := r.GetWaitMs() > 0 && r.GetMode() != warmpathv1.PickMode_PICK_MODE_QUERY
	if waits {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.GetWaitMs())*time.Millisecond)
		defer cancel()
	}
	x, repeated, err := k.leases.begin(name)
	for repeated && err == nil {
		a, failed := x.again(ctx, waits)
		if left := errors.Is(failed, context.Canceled) || errors.Is(failed, context.DeadlineExceeded); !left || ctx.Err() != nil {
			return a, failed
		}
		x, repeated, err = k.leases.begin(name) // whoever was first went away, or would not wait as long
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil { // who waits for the lease waits no longer
			x.booking.Release()
			k.leases.fail(x, errFault)
			panic(p)
		}
	}()
	x.q = *q
	began := k.picking(ctx)
	h, err := k.pick(ctx, r, x)
	if err != nil {
		k.leases.fail(x, err)
		return nil, err
	}
	k.picked(ctx, h, x, began)
	x.replica = numberOf(x.booking.Decision.Replica)
	x.q.DropPrompt()
	x.learns = r.GetMode() != warmpathv1.PickMode_PICK_MODE_QUERY
	length := k.holdFor(r)
	a := k.answer(h, r, x) // before anything else can happen to it
	x.q.Settle()           // else a lease would keep what the caller sent, or as long a list
	k.leases.hold(x, reserves, length, k.now())
	if reserves {
		a.Reservation = &warmpathv1.Reservation{Id: x.id, LeaseMs: uint32(length.Milliseconds())}
	}
	k.leases.settled(x, a)
	return a, nil
}

// pick asks the Router, and the next one where the config changed while it waited.
func (k *picks) pick(ctx context.Context, r *warmpathv1.ChooseReplicaRequest, x *lease) (*hosted, error) {
	for {
		h := k.hosted.Load()
		err := pickFrom(k.withStore(ctx, h.router), h.router, r, x)
		if errors.Is(err, router.ErrClosed) && k.hosted.Load() != h {
			continue
		}
		return h, err
	}
}

func pickFrom(ctx context.Context, rt *router.Router, r *warmpathv1.ChooseReplicaRequest, x *lease) error {
	switch {
	case r.GetMode() == warmpathv1.PickMode_PICK_MODE_QUERY:
		return rt.Query(ctx, &x.q, &x.booking)
	case r.GetWaitMs() > 0:
		return rt.Acquire(ctx, &x.q, &x.booking)
	}
	return rt.Pick(ctx, &x.q, &x.booking)
}

// picking returns when a pick began, the zero time if nobody wants to know how long it takes.
func (k *picks) picking(ctx context.Context) time.Time {
	if k.recorder == nil || !k.recorder.Timed(ctx) {
		return time.Time{}
	}
	return time.Now()
}

// picked counts a decision.
func (k *picks) picked(ctx context.Context, h *hosted, x *lease, began time.Time) {
	decision, pol := &x.booking.Decision, h.policy()
	k.tally.decided(pol, decision.Reason)
	if decision.Reason == policy.ReasonNoKey {
		h.warnNoKey.Do(func() { k.warnNoKey(pol) })
	}
	if k.recorder == nil {
		return
	}
	telemetry.Span(ctx, nil, pol, &x.q, *decision)
	k.recorder.Decided(ctx, pol, *decision)
	k.recorder.Shadowed(ctx, pol, &x.q, decision)
	if !began.IsZero() {
		k.recorder.Picked(ctx, pol, time.Since(began)-decision.Queued)
	}
}

// holdFor is how long the pick counts.
func (k *picks) holdFor(r *warmpathv1.ChooseReplicaRequest) time.Duration {
	limits := k.limits.Load()
	switch r.GetMode() {
	case warmpathv1.PickMode_PICK_MODE_QUERY:
		return time.Duration(limits.QueryHold)
	case warmpathv1.PickMode_PICK_MODE_RESERVE:
		longest := time.Duration(limits.Lease)
		if asked := time.Duration(r.GetLeaseMs()) * time.Millisecond; asked > 0 {
			return min(asked, longest)
		}
		return longest
	}
	return time.Duration(limits.CountedHold)
}

// again is the answer that was given before, or is being made: who waits does so until the context ends.
func (x *lease) again(ctx context.Context, waits bool) (*warmpathv1.ChooseReplicaResponse, error) {
	select {
	case <-x.made:
	default:
		if !waits {
			return nil, router.ErrFull // the first of its name waits for room
		}
		select {
		case <-x.made:
		case <-ctx.Done():
			return nil, router.ErrFull
		}
	}
	if x.err != nil {
		return nil, x.err
	}
	a := proto.CloneOf(x.answer)
	a.Reservation.Repeated = true
	return a, nil
}

func (k *picks) answer(h *hosted, r *warmpathv1.ChooseReplicaRequest, x *lease) *warmpathv1.ChooseReplicaResponse {
	decision := &x.booking.Decision
	return &warmpathv1.ChooseReplicaResponse{
		Deployment: k.name,
		Replica:    chosen(decision.Replica, decision.Rank()),
		Fallbacks:  fallbacks(h.router, &x.q, decision.Replica, int(cmp.Or(r.GetMaxFallbacks(), defaultFallbacks))),
		Decision:   h.decisionMessage(&x.q, decision),
		Candidates: h.candidates(&x.q, decision, int(r.GetMaxCandidates())),
	}
}

func (h *hosted) decisionMessage(q *policy.Request, d *policy.Decision) *warmpathv1.Decision {
	return &warmpathv1.Decision{
		Policy: h.policy(), Reason: string(d.Reason), Rule: string(d.Rule),
		MatchedTokens: uint32(d.MatchedTokens), PromptTokens: uint32(q.PromptTokens),
		Place: int32(d.Place), Load: d.Load, QueuedUs: uint64(d.Queued.Microseconds()),
	}
}

// candidates returns the pick and those that the policy would pick next, each with its score. O(n · replicas).
func (h *hosted) candidates(q *policy.Request, picked *policy.Decision, n int) []*warmpathv1.Candidate {
	if n == 0 {
		return nil
	}
	all := append(make([]policy.Decision, 0, n), *picked)
	all = h.router.Next(q, picked.Replica, n-1, all)
	messages := make([]*warmpathv1.Candidate, len(all))
	view := h.router.View()
	for i := range all {
		c := &all[i]
		if i > 0 { // the first has it as of before this pick
			c.Load = view.Load(c.Replica)
		}
		messages[i] = &warmpathv1.Candidate{
			Replica: chosen(c.Replica, c.Rank()), Decision: h.decisionMessage(q, c),
			Score: c.Load + float64(q.PromptTokens-c.MatchedTokens),
		}
	}
	return messages
}

// numberOf is the number under which watchers know a replica.
func numberOf(r *policy.Replica) uint32 {
	m, _ := r.Host().(*member)
	if m == nil {
		return 0
	}
	return m.number
}

func chosen(r *policy.Replica, rank int) *warmpathv1.ChosenReplica {
	c := &warmpathv1.ChosenReplica{Id: r.ID, Address: r.Address}
	if m, ok := r.Host().(*member); ok {
		c.ServerName = m.ServerName
	}
	if rank != policy.AnyRank {
		c.Rank = proto.Uint32(uint32(rank))
	}
	return c
}

// fallbacks returns whom the policy would pick next, one after the other.
func fallbacks(rt *router.Router, q *policy.Request, picked *policy.Replica, n int) []*warmpathv1.ChosenReplica {
	var few [defaultFallbacks]policy.Decision
	next := rt.Next(q, picked, n, few[:0])
	all := make([]*warmpathv1.ChosenReplica, len(next))
	for i := range next {
		all[i] = chosen(next[i].Replica, next[i].Rank())
	}
	return all
}

// status is the gRPC status of an error of a pick.
func (k *picks) status(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, errLeases), errors.Is(err, errPrincipalLeases), errors.Is(err, router.ErrFull), errors.Is(err, router.ErrQueueFull):
		code = codes.ResourceExhausted
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.ResourceExhausted // it waited, and nobody had room
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, router.ErrNotConnected), errors.Is(err, router.ErrNoSuchReplica), errors.Is(err, router.ErrClosed):
		code = codes.Unavailable
	}
	return status.Errorf(code, "deployment %s: %v", k.name, err)
}
