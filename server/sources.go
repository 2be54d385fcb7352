package server

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/admission"
	"github.com/warmpath/warmpath/internal/fleet"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// sources are what describes a deployment's members: its config, its target, and registrations. It is used with the
// deployment's mutex held.
type sources struct {
	deployment string
	log        *slog.Logger
	now        func() time.Time
	roster     *roster

	config     Deployment
	resolved   []described
	registered map[string]*registration
	fixed      map[string]int // the places of the config's replicas, by id

	// What is not merged yet.
	dirty map[string]bool // replicas whose registration or cache has changed
	whole bool            // anything else has changed

	unwell bool // a member did not serve when all were merged
}

// An ownLoad is the load that a replica reports of itself.
type ownLoad struct {
	replicaLoad           // negative = not reported
	at          time.Time // zero = it reports none
}

// A registration is a replica that registered itself, until its lease ends.
type registration struct {
	described
	load      ownLoad
	until     time.Time
	message   *warmpathv1.Replica // as received
	elsewhere bool                // by another server of the cluster
	announced bool                // the other servers have the description
}

// configure puts another config into force.
func (x *sources) configure(c Deployment) {
	if c.Target == "" { // the replicas of another target stay until there is a result of this one
		x.resolved = nil
	}
	if !c.Register {
		clear(x.registered)
	}
	if c.LoadPoll != x.config.LoadPoll {
		for _, m := range x.roster.order {
			m.polled, m.pollProblem = ownLoad{}, ""
		}
	}
	x.config, x.whole, x.fixed = c, true, make(map[string]int, len(c.Replicas))
	for i := range c.Replicas {
		x.fixed[c.Replicas[i].ID] = i
	}
}

// stirred reports whether the members are to be merged anew.
func (x *sources) stirred() bool { return x.whole || len(x.dirty) > 0 }

// touch notes that what is known of a replica has changed.
func (x *sources) touch(id string) {
	if x.dirty == nil {
		x.dirty = make(map[string]bool)
	}
	x.dirty[id] = true
}

// resolve sets the addresses of a target, and reports whether it is the config's.
func (x *sources) resolve(target string, all []described) bool {
	if target == x.config.Target {
		x.resolved, x.whole = all, true
	}
	return target == x.config.Target
}

// register applies a heartbeat, and reports whether it changes the fleet at once.
func (x *sources) register(
	r *warmpathv1.RegisterRequest, m described,
) (a *warmpathv1.RegisterResponse, changed bool, err error) {
	was := x.registered[m.ID]
	switch {
	case !x.config.Register:
		return nil, false, status.Errorf(codes.PermissionDenied,
			"deployment %s does not take replicas that register themselves: set register", x.deployment)
	case r.GetLeaving():
		delete(x.registered, m.ID)
		x.touch(m.ID)
		return new(warmpathv1.RegisterResponse), was != nil, nil
	case was == nil && len(x.registered) >= maxRegistered:
		return nil, false, status.Errorf(codes.ResourceExhausted,
			"deployment %s has %d registered replicas, which are all that it takes", x.deployment, maxRegistered)
	}
	next := &registration{described: m, message: r.GetReplica()}
	if was != nil && was.equal(&m) { // one description in memory, not one a heartbeat
		next.described, next.message, next.announced = was.described, was.message, was.announced
	}
	lease := x.renew(next, r.GetLeaseMs(), r.Ongoing, r.QueuedTokens)
	if x.registered == nil {
		x.registered = make(map[string]*registration)
	}
	x.registered[m.ID] = next
	changed = was == nil || was.Draining != m.Draining || was.Instance != m.Instance
	if changed || !was.equal(&next.described) {
		x.touch(m.ID)
	}
	heartbeat := min(lease, staleAfter) / 3
	a = &warmpathv1.RegisterResponse{LeaseMs: uint32(lease.Milliseconds()), HeartbeatMs: uint32(heartbeat.Milliseconds())}
	return a, changed, nil
}

// renew enters the lease and the load of a heartbeat, and returns the lease. A figure that is nil is not reported.
func (x *sources) renew(to *registration, leaseMs uint32, ongoing *uint32, tokens *uint64) (lease time.Duration) {
	lease = registerLease
	if asked := time.Duration(leaseMs) * time.Millisecond; asked > 0 {
		lease = min(asked, maxRegisterLease)
	}
	now := x.now()
	to.until, to.load = now.Add(lease), ownLoad{replicaLoad: replicaLoad{-1, -1}}
	if ongoing != nil {
		to.load.ongoing, to.load.at = int64(min(*ongoing, maxOngoing)), now
	}
	if tokens != nil {
		to.load.tokens, to.load.at = int64(min(*tokens, maxTokens)), now
	}
	if known := x.roster.byID[to.ID]; known != nil && known.health != (healthChecks{}) {
		known.health, x.whole = healthChecks{}, true
	}
	return lease
}

// registeredElsewhere applies registrations that another server received, and reports whether they change the fleet
// at once.
func (x *sources) registeredElsewhere(all []*warmpathv1.RegisterRequest) (changed bool) {
	for _, r := range all {
		m, err := decodeReplica(r.GetReplica(), admission.AnyHost) // the other server has checked its hosts
		if err != nil {
			continue
		}
		_, moves, err := x.register(r, m)
		if own := x.registered[m.ID]; own != nil && err == nil {
			own.elsewhere, own.announced = true, true
		}
		changed = changed || moves
	}
	return changed
}

// renewedElsewhere applies heartbeats that another server received. It reports whether replicas left, and the ids of
// replicas whose description is missing here.
func (x *sources) renewedElsewhere(all []*warmpathv1.PeerHeartbeat) (changed bool, missing []string) {
	for _, h := range all {
		switch own := x.registered[h.GetId()]; {
		case own == nil && h.GetLeaving():
		case own == nil:
			missing = append(missing, h.GetId())
		case h.GetLeaving():
			delete(x.registered, h.GetId())
			x.touch(h.GetId())
			changed = true
		default:
			x.renew(own, h.GetLeaseMs(), h.Ongoing, h.QueuedTokens)
			own.elsewhere = true
		}
	}
	return changed, missing
}

// expire removes the registrations whose lease has ended, and returns how many.
func (x *sources) expire(now time.Time) (expired int64) {
	for id, r := range x.registered {
		if !now.Before(r.until) {
			delete(x.registered, id)
			x.touch(id)
			expired++
			x.log.Warn("warmpath: a registered replica is silent and removed", "replica", id)
		}
	}
	return expired
}

// merge enters what has changed into the roster. Where only registrations have, it costs as much as they are.
func (x *sources) merge() fleetChange {
	dirty := x.dirty
	x.dirty = nil
	if x.whole || x.unwell || len(x.resolved) > 0 {
		x.whole = false
		return x.roster.set(x.members())
	}
	var some []described
	var left []string
	for id := range dirty {
		if m, ok := x.member(id); ok {
			some = append(some, m)
		} else {
			left = append(left, id)
		}
	}
	slices.SortFunc(some, func(a, b described) int { return cmp.Compare(a.ID, b.ID) })
	return x.roster.apply(some, left)
}

// member is a replica of the config or one that registered, as members has it; false = there is none.
func (x *sources) member(id string) (m described, ok bool) {
	own := x.registered[id]
	at, fixed := x.fixed[id]
	switch {
	case fixed:
		if m.Attributes = x.config.Replicas[at]; own != nil {
			m.reports(own.described)
		}
	case own == nil:
		return m, false
	default:
		m = own.described
	}
	if known := x.roster.byID[id]; known != nil {
		m.KVTokens = cmp.Or(m.KVTokens, known.kvTokens)
	}
	return m, true
}

// members merges the members of all sources, the config's first.
func (x *sources) members() []described {
	all := make([]described, 0, len(x.config.Replicas)+len(x.registered)+len(x.resolved))
	addresses := make(map[string]bool)
	for _, r := range x.config.Replicas {
		m := described{Attributes: r}
		if own := x.registered[m.ID]; own != nil {
			m.reports(own.described)
		}
		addresses[m.Address] = true
		all = append(all, m)
	}
	for _, r := range x.registered {
		addresses[r.Address] = true
		all = append(all, r.described)
	}
	for _, m := range x.resolved {
		if !addresses[m.Address] {
			all = append(all, m)
		}
	}
	for i := range all {
		if m := x.roster.byID[all[i].ID]; m != nil {
			all[i].KVTokens = cmp.Or(all[i].KVTokens, m.kvTokens)
		}
	}
	slices.SortStableFunc(all[len(x.config.Replicas):], func(a, b described) int { return cmp.Compare(a.ID, b.ID) })
	x.unwell = false
	mark(all, func(id string) bool {
		m := x.roster.byID[id]
		is := m != nil && m.health.unwell()
		x.unwell = x.unwell || is
		return is
	})
	return all
}

// loadOf returns the load in a replica's registration, or else its polled load; at is zero if there is neither.
func (x *sources) loadOf(m *member) ownLoad {
	if r := x.registered[m.ID]; r != nil && !r.load.at.IsZero() {
		return r.load
	}
	return m.polled
}

// reports adds a registration to a replica of the config: the fields that only the replica has.
func (m *described) reports(own described) {
	m.Draining = m.Draining || own.Draining
	m.Stats, m.KVTokens = own.Stats, own.KVTokens
	m.Instance = cmp.Or(own.Instance, m.Instance)
	if len(own.Adapters) > 0 {
		m.Adapters = own.Adapters
	}
}

// Bounds of a registration.
const (
	maxRegistered = 10_000    // replicas that register themselves in one deployment
	maxReplica    = 256 << 10 // bytes of a description: those of a thousand adapters and more
	// registerLease is the lease of a registration that requests none, maxRegisterLease the longest.
	registerLease, maxRegisterLease = 10 * time.Second, time.Hour
)

// Register implements the service.
func (s services) Register(ctx context.Context, r *warmpathv1.RegisterRequest) (*warmpathv1.RegisterResponse,
	error) {
	p := s.principalOf(ctx)
	d, err := s.named(p, r.GetDeployment())
	if err != nil {
		return nil, err
	}
	if !p.rules.Load().Register {
		return nil, status.Errorf(codes.PermissionDenied, "the principal %q may not register replicas: set its register",
			p.name)
	}
	host, _, _ := net.SplitHostPort(addressOf(ctx)) // empty = not known
	m, err := decodeReplica(r.GetReplica(), append(slices.Clip(*d.eventHosts.Load()), host)...)
	if err != nil {
		return nil, err
	}
	var a *warmpathv1.RegisterResponse
	d.update(func(x *sources) (changed bool) {
		if a, changed, err = x.register(r, m); err == nil {
			d.peers.registered(m.ID)
		}
		return changed
	})
	return a, err
}

// decodeReplica reads the description of a replica that registers, whose KV events may come from further hosts. Its
// errors are statuses that name the field.
func decodeReplica(r *warmpathv1.Replica, hosts ...string) (described, error) {
	if n := proto.Size(r); n > maxReplica {
		return described{}, invalid("replica: %d bytes, which is more than %d", n, maxReplica)
	}
	for name, x := range r.GetStats() {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return described{}, invalid("replica.stats: %.20q is not finite", name)
		}
	}
	m := described{Attributes: fleet.FromMessage(r)}
	if err := admission.AdmitOwn(&m.Attributes, hosts...); err != nil {
		return described{}, invalid("replica.%v", err)
	}
	m.KVTokens = int(min(r.GetKvTokens(), maxLength))
	return m, nil
}
