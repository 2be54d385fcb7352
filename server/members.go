package server

import (
	"cmp"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
	"github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// sources are what describes a deployment's members: its config, its target, and registrations, with the symptoms that
// health checks found. It is used with the deployment's mutex held.
type sources struct {
	deployment string
	log        *slog.Logger
	now        func() time.Time
	roster     *roster

	config     Deployment
	resolved   []described
	registered map[string]*registration
	unwell     map[string]symptom // by id, of those that do not serve
	stirred    bool               // a replica's own figures changed: they are in force from the next interval
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
	request   *warmpathv1.RegisterRequest // as received
	elsewhere bool                        // by another server of the cluster
}

// configure puts another config into force.
func (x *sources) configure(c Deployment) {
	if c.Target == "" { // the replicas of another target stay until there is a result of this one
		x.resolved = nil
	}
	if !c.Register {
		clear(x.registered)
	}
	if !reflect.DeepEqual(c.LoadPoll, x.config.LoadPoll) {
		for _, m := range x.roster.order {
			m.polled = ownLoad{}
		}
	}
	x.config = c
}

// resolve sets the addresses of a target, and reports whether it is the config's.
func (x *sources) resolve(target string, all []described) bool {
	if target == x.config.Target {
		x.resolved = all
	}
	return target == x.config.Target
}

// check sets the symptoms of replicas that do not serve, and reports whether they have changed. A replica that has
// registered in the meantime reports its own state.
func (x *sources) check(unwell map[string]symptom) (changed bool) {
	maps.DeleteFunc(unwell, func(id string, _ symptom) bool { return x.registered[id] != nil })
	if maps.Equal(unwell, x.unwell) {
		return false
	}
	x.unwell = unwell
	return true
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
		return new(warmpathv1.RegisterResponse), was != nil, nil
	case was == nil && len(x.registered) >= maxRegistered:
		return nil, false, status.Errorf(codes.ResourceExhausted,
			"deployment %s has %d registered replicas, which are all that it takes", x.deployment, maxRegistered)
	}
	lease := registerLease
	if asked := time.Duration(r.GetLeaseMs()) * time.Millisecond; asked > 0 {
		lease = min(asked, maxRegisterLease)
	}
	now := x.now()
	next := &registration{described: m, load: ownLoad{replicaLoad: replicaLoad{-1, -1}}, until: now.Add(lease), request: r}
	if r.Ongoing != nil {
		next.load.ongoing, next.load.at = int64(min(r.GetOngoing(), maxOngoing)), now
	}
	if r.QueuedTokens != nil {
		next.load.tokens, next.load.at = int64(min(r.GetQueuedTokens(), maxTokens)), now
	}
	if x.registered == nil {
		x.registered = make(map[string]*registration)
	}
	x.registered[m.ID] = next
	delete(x.unwell, m.ID)
	changed = was == nil || was.Draining != m.Draining || was.Instance != m.Instance
	x.stirred = x.stirred || !changed && !was.equal(&next.described)
	heartbeat := min(lease, staleAfter) / 3
	a = &warmpathv1.RegisterResponse{LeaseMs: uint32(lease.Milliseconds()), HeartbeatMs: uint32(heartbeat.Milliseconds())}
	return a, changed, nil
}

// registeredElsewhere applies heartbeats that another server received, and reports whether they change the fleet at once.
func (x *sources) registeredElsewhere(all []*warmpathv1.RegisterRequest) (changed bool) {
	for _, r := range all {
		m, err := decodeReplica(r.GetReplica())
		if err != nil {
			continue
		}
		_, moves, err := x.register(r, m)
		if own := x.registered[m.ID]; own != nil {
			own.elsewhere = err == nil
		}
		changed = changed || moves
	}
	return changed
}

// heartbeats are those of the replicas that registered here, with what is left of their leases.
func (x *sources) heartbeats(now time.Time) (all []*warmpathv1.RegisterRequest) {
	for _, r := range x.registered {
		if left := r.until.Sub(now).Milliseconds(); !r.elsewhere && left > 0 {
			beat := proto.CloneOf(r.request)
			beat.LeaseMs = uint32(left)
			all = append(all, beat)
		}
	}
	return all
}

// expire removes the registrations whose lease has ended, and returns how many. stirred: the members are to be merged
// anew, for that or for figures that changed since the last interval.
func (x *sources) expire(now time.Time) (expired int64, stirred bool) {
	for id, r := range x.registered {
		if !now.Before(r.until) {
			delete(x.registered, id)
			expired++
			x.log.Warn("warmpath: a registered replica is silent and removed", "replica", id)
		}
	}
	stirred = x.stirred || expired > 0
	x.stirred = false
	return expired, stirred
}

// poll enters the polled load of a replica.
func (x *sources) poll(id string, l load.Report) {
	m := x.roster.byID[id]
	if m == nil || x.config.LoadPoll == nil {
		return
	}
	m.polled = ownLoad{replicaLoad{int64(min(l.Ongoing, maxOngoing)), l.QueuedTokens}, x.now()}
	if l.KVTokens != 0 && l.KVTokens != m.kvTokens {
		m.kvTokens, x.stirred = l.KVTokens, true
	}
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
	mark(all, x.unwell)
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

// described is a replica as a source of members describes it.
type described struct {
	policy.Attributes
	KVTokens int  // size of the cache in tokens; 0 = not known
	marked   bool // draining because its health check fails
}

func (d *described) equal(o *described) bool {
	return d.KVTokens == o.KVTokens && d.marked == o.marked && d.Attributes.Equal(o.Attributes)
}

// A member is a replica of the fleet under its number. It is not written again; another description is another member
// with the same record.
type member struct {
	described
	*record
	number  uint32
	version uint64              // of the roster, when it joined or changed
	message *warmpathv1.Replica // never written again
}

// roster is the membership, with versions: a client that has one is sent the changes since. It is used with the
// deployment's mutex held.
type roster struct {
	version uint64
	last    uint32    // the highest number so far
	order   []*member // by number
	byID    map[string]*member

	left   []*member // the latest departures with their versions, oldest first
	forgot uint64    // departures up to this version are dropped
}

// maxDepartures bounds the departures that are kept; a client that missed more is sent a snapshot.
const maxDepartures = 1024

// set replaces the membership and reports whether it changed. Of two replicas with one id the first counts.
func (r *roster) set(all []described) bool {
	next := make(map[string]*member, len(all))
	version, changed := r.version+1, false
	for i := range all {
		d := &all[i]
		if next[d.ID] != nil {
			continue
		}
		was := r.byID[d.ID]
		if was != nil && was.equal(d) {
			next[d.ID] = was
			continue
		}
		changed = true
		m := &member{described: *d, version: version}
		if was != nil {
			m.number, m.record = was.number, was.record
		} else {
			r.last++
			m.number, m.record = r.last, new(record)
		}
		m.message = m.encode()
		next[d.ID] = m
	}
	for _, m := range r.order {
		if next[m.ID] == nil {
			changed = true
			r.left = append(r.left, &member{number: m.number, version: version})
		}
	}
	if n := len(r.left) - maxDepartures; n > 0 {
		r.forgot = r.left[n-1].version
		r.left = slices.Delete(r.left, 0, n)
	}
	if changed {
		r.version, r.byID = version, next
		r.order = slices.SortedFunc(maps.Values(next), func(a, b *member) int { return cmp.Compare(a.number, b.number) })
	}
	return changed
}

// numbered returns the member with a number, or nil.
func (r *roster) numbered(number uint32) *member {
	at, ok := slices.BinarySearchFunc(r.order, number, func(m *member, n uint32) int { return cmp.Compare(m.number, n) })
	if !ok {
		return nil
	}
	return r.order[at]
}

// since returns the changes after a version; nil if there are none.
func (r *roster) since(version uint64) *warmpathv1.FleetUpdate {
	if version == r.version && version != 0 {
		return nil
	}
	u := &warmpathv1.FleetUpdate{Version: r.version}
	u.Snapshot = version == 0 || version > r.version || version < r.forgot
	if u.Snapshot {
		version = 0
	}
	for _, m := range r.order {
		if m.version > version {
			u.Replicas = append(u.Replicas, m.message)
		}
	}
	for _, d := range r.left {
		if !u.Snapshot && d.version > version {
			u.Removed = append(u.Removed, d.number)
		}
	}
	return u
}

func (m *member) encode() *warmpathv1.Replica {
	p := admission.Message(m.Attributes)
	p.Number, p.KvTokens, p.KvEvents, p.KvEventsReplay = m.number, uint64(max(m.KVTokens, 0)), "", ""
	return p
}

// has reports whether a number is that of a member.
func (r *roster) has(number uint32) bool { return r.numbered(number) != nil }

// numberOf returns the number of a member, 0 if there is none with this id.
func (r *roster) numberOf(id string) uint32 {
	if m := r.byID[id]; m != nil {
		return m.number
	}
	return 0
}
