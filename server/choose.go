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
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
	"github.com/warmpath/warmpath/internal/sharedstore"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// defaultFallbacks is the number of fallbacks in an answer where the request sets none.
const defaultFallbacks = 2

// ChooseReplica implements the service. It makes a span, with the decision on it.
func (s services) ChooseReplica(ctx context.Context,
	r *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error) {
	ctx, end := s.span(ctx, r.GetTraceparent())
	a, err := s.choose(ctx, r)
	end(err)
	return a, err
}

func (s *Server) choose(ctx context.Context, r *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse,
	error) {
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
	part.OfRequest(&q).Origin = cmp.Or(endpoint.Origin(ctx), state.Origin(grpcOrigin{ctx}))
	q.Allow = d.catalogue.Load().ids(q.Allow)
	view := d.hosted.Load().router.View()
	for _, id := range r.GetTried() {
		router.NextAttempt(&q, view.ByID(id)) // of an id that is not in the fleet only the attempt counts
	}
	if adopted := metadata.ValueFromIncomingContext(ctx, warmpathv1.MetadataAdopted); len(adopted) > 0 {
		part.OfRequest(&q).Side = state.ByPolicy
	} else if q.PromptTokens == 0 && d.hosted.Load().needsPrompt() { // a client that has the config has checked it
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

// grpcOrigin is the metadata of a ChooseReplica call; it has no message of the model's service.
type grpcOrigin struct{ context.Context }

// Message implements state.Origin.
func (grpcOrigin) Message() any { return nil }

// Header implements state.Origin.
func (o grpcOrigin) Header(key string) []string { return metadata.ValueFromIncomingContext(o, key) }

// picks makes the picks of one deployment, and holds their leases. Safe for use by many goroutines; the leases have
// their own lock.
type picks struct {
	name   string
	log    *slog.Logger
	now    func() time.Time
	hosted *atomic.Pointer[hosted]
	tally  *tally
	leases leases
	store  policy.Store // shared by custom policies

	recorder *telemetry.Recorder
}

// choose picks, waiting up to wait_ms, and holds the load for as long as the mode requires.
func (k *picks) choose(
	ctx context.Context, p *principal, r *warmpathv1.ChooseReplicaRequest, q *policy.Request,
) (*warmpathv1.ChooseReplicaResponse, error) {
	reserves := r.GetMode() == warmpathv1.PickMode_PICK_MODE_RESERVE
	name := leaseName{by: p}
	if reserves && q.ID != "" {
		name.request, name.attempt = q.ID, r.GetAttempt()
	}
	waits := r.GetWaitMs() > 0 && r.GetMode() != warmpathv1.PickMode_PICK_MODE_QUERY
	call := ctx
	if waits {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.GetWaitMs())*time.Millisecond)
		defer cancel()
	}
	o := endpoint.OngoingOf(ctx)
	if o != nil {
		k.tells(p, o, k.hosted.Load().router.View())
	}
	x, again, err := k.leases.claim(ctx, name, waits)
	if x == nil {
		return again, err
	}
	defer func() {
		if p := recover(); p != nil { // ends the calls that wait for the lease
			x.giveBack()
			k.leases.fail(x)
			panic(p)
		}
	}()
	x.q = *q
	began := k.recorder.Picking(ctx)
	h, err := k.pick(ctx, r, x)
	if err != nil {
		k.leases.fail(x)
		return nil, err
	}
	x.learns = r.GetMode() != warmpathv1.PickMode_PICK_MODE_QUERY
	err = call.Err() // the request will not be sent
	if err == nil && !p.may(k.name) {
		err = errDeployment
	}
	if err != nil {
		x.release(policy.Outcome{Fault: policy.GivenUp, Usage: policy.NoUsage})
		k.leases.fail(x)
		return nil, err
	}
	k.picked(ctx, h, x, began)
	x.replica = numberOf(x.reservation.Decision.Replica)
	router.DropPrompt(&x.q)
	a := k.answer(h, r, x) // before the lease is in force
	router.Settle(&x.q)    // else the lease would keep the lists of the request
	k.leases.hold(x, a, reserves, holdFor(r), k.now(), o)
	return a, nil
}

// pick picks by the Router, and by the next one where the config changed while it waited.
func (k *picks) pick(ctx context.Context, r *warmpathv1.ChooseReplicaRequest, x *lease) (*hosted, error) {
	for {
		h := k.hosted.Load()
		how := router.How{NoWait: r.GetWaitMs() == 0, Query: r.GetMode() == warmpathv1.PickMode_PICK_MODE_QUERY}
		var leg *router.Reservation // of the prefill; nil = there is none
		if id := r.GetPrefilledBy(); id != "" || h.router.Fleet.Divided() {
			how.Legs = &router.Legs{Only: r.GetPairOnly(), From: h.router.View().ByID(id)}
			switch {
			case id != "" && how.Legs.From == nil:
				return h, router.ErrNoSuchReplica
			case id == "" && r.GetPair():
				leg = new(router.Reservation)
				how.Legs.Prefill = leg
			}
		}
		call := ctx
		if h.router.Uses()&policy.CallsOut != 0 {
			call = sharedstore.NewContext(ctx, k.store)
		}
		err := h.router.Reserve(call, &x.q, &x.reservation, how)
		if errors.Is(err, router.ErrClosed) && k.hosted.Load() != h {
			continue
		}
		if leg != nil && leg.Decision.Replica != nil {
			x.prefill = leg
		}
		return h, err
	}
}

// picked counts a decision.
func (k *picks) picked(ctx context.Context, h *hosted, x *lease, began time.Time) {
	decision, name := &x.reservation.Decision, h.policy()
	k.tally.decided(name, &x.q, decision)
	if decision.Reason == policy.ReasonNoKey {
		h.warnNoKey.Do(func() { k.warnNoKey(name) })
	}
	k.recorder.Decided(ctx, nil, name, &x.q, decision)
	k.recorder.Picked(ctx, name, began, decision.Queued)
	if x.prefill != nil {
		k.tally.decided(name, &x.q, &x.prefill.Decision)
	}
}

// holdFor is how long the pick adds to the load.
func holdFor(r *warmpathv1.ChooseReplicaRequest) time.Duration {
	switch r.GetMode() {
	case warmpathv1.PickMode_PICK_MODE_QUERY:
		return queryHold
	case warmpathv1.PickMode_PICK_MODE_RESERVE:
		if asked := time.Duration(r.GetLeaseMs()) * time.Millisecond; asked > 0 {
			return min(asked, maxLease)
		}
		return maxLease
	}
	return countedHold
}

// answer describes a pick, with the replicas that the policy would pick next.
func (k *picks) answer(h *hosted, r *warmpathv1.ChooseReplicaRequest, x *lease) *warmpathv1.ChooseReplicaResponse {
	decision := &x.reservation.Decision
	a := &warmpathv1.ChooseReplicaResponse{
		Deployment: k.name,
		Replica:    chosen(decision.Replica, decision.Rank()),
		Decision:   h.decisionMessage(&x.q, decision),
	}
	if x.prefill != nil {
		d := &x.prefill.Decision
		a.Prefill, a.PrefillDecision = chosen(d.Replica, d.Rank()), h.decisionMessage(&x.q, d)
		a.Prefill.KvBootstrap, a.Prefill.KvEngineId = fleet.Bootstrap(d.Replica.Attributes), d.Replica.KVEngineID
	}
	fallbacks, candidates := int(cmp.Or(r.GetMaxFallbacks(), defaultFallbacks)), int(r.GetMaxCandidates())
	if !x.name.by.trusted() {
		candidates = 0 // they would be withheld
	}
	var few [defaultFallbacks]policy.Decision
	next := h.router.Next(&x.q, decision.Replica, max(fallbacks, candidates-1), few[:0])
	a.Fallbacks = make([]*warmpathv1.ChosenReplica, min(fallbacks, len(next)))
	for i := range a.Fallbacks {
		a.Fallbacks[i] = chosen(next[i].Replica, next[i].Rank())
	}
	if candidates == 0 {
		return a
	}
	a.Candidates = append(a.Candidates, h.candidate(&x.q, decision)) // with its load before this pick
	view := h.router.View()
	for i := range next[:min(candidates-1, len(next))] {
		next[i].Load = view.Load(next[i].Replica)
		a.Candidates = append(a.Candidates, h.candidate(&x.q, &next[i]))
	}
	return a
}

func (h *hosted) candidate(q *policy.Request, d *policy.Decision) *warmpathv1.Candidate {
	return &warmpathv1.Candidate{
		Replica: chosen(d.Replica, d.Rank()), Decision: h.decisionMessage(q, d),
		Score: d.Load + float64(q.PromptTokens-d.MatchedTokens),
	}
}

func (h *hosted) decisionMessage(q *policy.Request, d *policy.Decision) *warmpathv1.Decision {
	return &warmpathv1.Decision{
		Policy: h.policy(), Reason: string(d.Reason), Rule: string(d.Rule),
		MatchedTokens: uint32(d.MatchedTokens), PromptTokens: uint32(q.PromptTokens),
		Place: int32(d.Place), Load: d.Load, QueuedUs: uint64(d.Queued.Microseconds()),
	}
}

// numberOf is the number of a replica in the protocol of watchers.
func numberOf(r *policy.Replica) uint32 {
	m, _ := r.Host().(*member)
	if m == nil {
		return 0
	}
	return m.number
}

func chosen(r *policy.Replica, rank int) *warmpathv1.ChosenReplica {
	c := &warmpathv1.ChosenReplica{Id: r.ID, Address: r.Address, ServerName: r.ServerName}
	if rank != policy.AnyRank {
		c.Rank = proto.Uint32(uint32(rank))
	}
	return c
}

// status is the gRPC status of an error of a pick.
func (k *picks) status(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, errLeases), errors.Is(err, errPrincipalLeases),
		errors.Is(err, router.ErrFull), errors.Is(err, router.ErrQueueFull),
		errors.Is(err, context.DeadlineExceeded): // it waited, and no replica had room
		code = codes.ResourceExhausted
	case errors.Is(err, errDeployment):
		code = codes.PermissionDenied
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, router.ErrNotConnected), errors.Is(err, router.ErrNoSuchReplica),
		errors.Is(err, router.ErrClosed):
		code = codes.Unavailable
	}
	err = status.Errorf(code, "deployment %s: %v", k.name, err)
	if code == codes.ResourceExhausted {
		return &endpoint.LaterError{Err: err, After: k.leases.room(k.hosted.Load().router.Queued(), k.now())}
	}
	return err
}
