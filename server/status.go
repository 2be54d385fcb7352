package server

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// States of a replica, in [warmpathv1.ReplicaStatus] and in metrics.
const (
	stateReady        = "ready"
	stateFull         = "full"
	stateEjected      = "ejected"
	stateNotServing   = "not_serving"
	stateDraining     = "draining"
	stateDisconnected = "disconnected"
)

// GetStatus implements the service. It reports the deployments that the principal may use.
func (s services) GetStatus(ctx context.Context, r *warmpathv1.GetStatusRequest) (*warmpathv1.GetStatusResponse,
	error) {
	up := max(s.now().Sub(s.began), 0)
	a := &warmpathv1.GetStatusResponse{Incarnation: s.incarnation, UptimeMs: uint64(up.Milliseconds())}
	p := s.principalOf(ctx)
	all := s.open(p)
	if name := r.GetDeployment(); name != "" {
		d, err := s.named(p, name)
		if err != nil {
			return nil, err
		}
		all = map[string]*deployment{name: d}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a.Deployments = append(a.Deployments, all[name].describe(p.view()))
	}
	if !p.trusted() {
		withholdStatus(a)
	}
	return a, nil
}

// describe is the state of a deployment, with one view of the load. O(replicas), and the locks of their event streams.
func (d *deployment) describe(view int) *warmpathv1.DeploymentStatus {
	h := d.hosted.Load()
	decisions, failures := d.tally.counts()
	a := &warmpathv1.DeploymentStatus{
		Name: d.name, Policy: h.policy(), NotServing: d.catalogue.Load().notServing(),
		Decisions: decisions, Failures: failures,
		Reservations: uint32(d.picks.leases.held()), ReservationsExpired: uint64(d.picks.leases.expired.Load()),
		RegistrationsExpired: uint64(d.tally.registrationsExpired.Load()),
		Queued:               uint32(h.router.Queued()),
		Index:                h.indexStatus(),
		BroadcastBytes:       uint64(d.tally.sentBytes.Load()), BroadcastMessages: uint64(d.tally.sentMessages.Load()),
		Unpublished: uint64(d.tally.unpublished.Load()),
	}
	a.CachedTokens, a.Shadow = d.tally.caches(h.config.ShadowPolicy.Name)
	a.Cluster = d.clusterStatus()
	a.Watchers, a.Replicas = uint32(d.watching()), d.replicaStatuses(view)
	events := h.eventStatus()
	for _, r := range a.Replicas {
		r.Events = events[r.GetId()]
	}
	return a
}

// replicaStatuses is the state of all replicas, in the fleet's order, without events, with one view of the load.
func (d *deployment) replicaStatuses(load int) []*warmpathv1.ReplicaStatus {
	rt := d.hosted.Load().router
	view := rt.View()
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*warmpathv1.ReplicaStatus, len(d.roster.order))
	for i, m := range d.roster.order {
		rep := view.ByID(m.ID)
		_, stale := slices.BinarySearch(d.balance.stale, m.number)
		all[i] = &warmpathv1.ReplicaStatus{
			Id: m.ID, Address: m.Address, Role: m.Role, Stale: stale, PollProblem: m.pollProblem,
			KvTokens: uint64(max(m.KVTokens, 0)), HomeWeight: d.homes.Weights()[m.ID],
		}
		all[i].Ongoing, all[i].QueuedTokens = m.shown[load].shown()
		all[i].State, all[i].Health = d.condition(m, rep, rt)
		if rep != nil {
			all[i].MaxOngoingRequests = uint32(rep.Capacity())
		}
	}
	return all
}

// Sources of a health report: the server's health check, or the outcomes of calls.
const (
	byCheck = "check"
	byCalls = "calls"
)

// condition is the state of a member, with the evidence against it; rep is its replica in the Router, or nil. Called
// with mu held.
func (d *deployment) condition(
	m *member, rep *policy.Replica, rt *router.Router,
) (state string, evidence []*warmpathv1.HealthReport) {
	now := d.now()
	since := func(t time.Time) uint64 { return uint64(max(now.Sub(t).Milliseconds(), 1)) }
	unwell := m.health.unwell()
	if unwell {
		evidence = append(evidence, &warmpathv1.HealthReport{
			By: byCheck, State: stateNotServing, ForMs: since(m.health.since), Why: m.health.why,
		})
	}
	e := m.ejection
	if e != nil && rep != nil {
		evidence = append(evidence, &warmpathv1.HealthReport{
			By: byCalls, State: e.state.String(), ForMs: since(e.since), Why: whyEjected[e.cause],
			Principals: uint32(len(rt.Outliers().Evidence(rt.Outlier(rep)))),
		})
	}
	switch {
	case rep == nil || !rep.Connected():
		state = stateDisconnected
	case m.Draining && !m.marked:
		state = stateDraining
	case unwell:
		state = stateNotServing
	case e != nil:
		state = stateEjected
	case rep.Full():
		state = stateFull
	default:
		state = stateReady
	}
	return state, evidence
}

var whyEjected = map[outlier.Cause]string{
	outlier.CauseFault: "calls fail",
	outlier.CauseLate:  "first messages are late, or do not come",
	outlier.CauseProbe: "its probe failed",
}

// indexStatus is nil where the policy has no index.
func (h *hosted) indexStatus() *warmpathv1.IndexStatus {
	stats := h.router.Policy().IndexStats
	if stats == nil {
		return nil
	}
	st := stats()
	return &warmpathv1.IndexStatus{
		Bytes: uint64(st.Bytes), Blocks: uint64(st.Blocks), Evictions: uint64(st.Evictions),
		Superblocks: uint64(h.index.size()),
	}
}

// eventStatus adds up the streams of each replica that is followed.
func (h *hosted) eventStatus() map[string]*warmpathv1.EventStatus {
	all := make(map[string]*warmpathv1.EventStatus)
	if h.events == nil {
		return all
	}
	for _, st := range h.events.Status() {
		sum := all[st.Replica]
		if sum == nil {
			sum = new(warmpathv1.EventStatus)
			all[st.Replica] = sum
		}
		sum.Streams++
		if st.Connected {
			sum.Connected++
		}
		sum.Blocks += uint64(max(st.Blocks, 0))
		sum.BlockTokens = max(sum.BlockTokens, uint32(st.BlockTokens))
		sum.Messages += uint64(st.Messages)
		sum.Gaps += uint64(st.Gaps)
		sum.Orphaned += uint64(st.Orphaned)
		sum.LagUs = max(sum.LagUs, uint64(max(st.Lag, 0).Microseconds()))
		if sum.Problem == "" {
			sum.Problem = strings.ToValidUTF8(st.Problem, "?")
		}
	}
	return all
}
