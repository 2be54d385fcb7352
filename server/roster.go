package server

import (
	"cmp"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

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
	message *warmpathv1.Replica // never written again; nil = it is too large to be sent
	size    int                 // of message, in bytes
}

// roster is the membership, with versions: a client that has one is sent the changes since. It is used with the
// deployment's mutex held.
type roster struct {
	log     *slog.Logger
	tally   *tally
	version uint64
	last    uint32    // the highest number so far
	order   []*member // by number
	byID    map[string]*member

	joined []*member // the members as they joined or changed, by version; some are replaced or have left
	left   []*member // the latest departures with their versions, oldest first
	forgot uint64    // departures up to this version are dropped
}

// maxDepartures bounds the departures that are kept; a client that missed more is sent a snapshot.
const maxDepartures = 1024

// A fleetChange is how the membership changes.
type fleetChange struct {
	changed []succession
	joined  []*member
	left    []*member
}

// A succession is a member with another description.
type succession struct{ was, is *member }

func (c *fleetChange) none() bool { return len(c.changed)+len(c.joined)+len(c.left) == 0 }

// any reports whether a replica joined or left, or one of those that stay has changed in such a way.
func (c *fleetChange) any(way func(was, is *member) bool) bool {
	return len(c.joined)+len(c.left) > 0 ||
		slices.ContainsFunc(c.changed, func(x succession) bool { return way(x.was, x.is) })
}

// set replaces the membership. Of two replicas with one id the first counts.
func (r *roster) set(all []described) fleetChange {
	there := make(map[string]bool, len(all))
	some := make([]described, 0, len(all))
	for i := range all {
		if id := all[i].ID; !there[id] {
			there[id] = true
			some = append(some, all[i])
		}
	}
	var left []string
	for _, m := range r.order {
		if !there[m.ID] {
			left = append(left, m.ID)
		}
	}
	return r.apply(some, left)
}

// apply enters replicas that may have changed or are new, and takes others out. Beside copies of pointers it costs what
// has changed.
func (r *roster) apply(some []described, left []string) (c fleetChange) {
	version, order := r.version+1, slices.Clone(r.order) // the old order may be in use
	if r.byID == nil {
		r.byID = make(map[string]*member)
	}
	for i := range some {
		d := &some[i]
		was := r.byID[d.ID]
		if was != nil && was.equal(d) {
			continue
		}
		m := &member{described: *d, version: version}
		if was != nil {
			m.number, m.record = was.number, was.record
			if was.Address != d.Address {
				m.health, m.pollProblem = healthChecks{}, ""
			}
			order[placeOf(order, m.number)] = m
			c.changed = append(c.changed, succession{was, m})
		} else {
			r.last++
			m.number, m.record = r.last, new(record)
			order = append(order, m)
			c.joined = append(c.joined, m)
		}
		r.encode(m)
		r.byID[d.ID] = m
		r.joined = append(r.joined, m)
	}
	for _, id := range left {
		if m := r.byID[id]; m != nil {
			delete(r.byID, id)
			c.left = append(c.left, m)
			r.left = append(r.left, &member{number: m.number, version: version})
		}
	}
	if len(c.left) > 0 {
		order = slices.DeleteFunc(order, func(m *member) bool { return r.byID[m.ID] != m })
	}
	if n := len(r.left) - maxDepartures; n > 0 {
		r.forgot = r.left[n-1].version
		r.left = slices.Delete(r.left, 0, n)
	}
	if c.none() {
		return c
	}
	r.version, r.order = version, order
	if len(r.joined) > 2*len(order)+maxDepartures {
		r.joined = slices.SortedFunc(slices.Values(order), func(a, b *member) int { return cmp.Compare(a.version, b.version) })
	}
	return c
}

// placeOf returns the place of a member's number.
func placeOf(order []*member, number uint32) int {
	at, _ := slices.BinarySearchFunc(order, number, func(m *member, n uint32) int { return cmp.Compare(m.number, n) })
	return at
}

// numbered returns the member with a number, or nil.
func (r *roster) numbered(number uint32) *member {
	if at := placeOf(r.order, number); at < len(r.order) && r.order[at].number == number {
		return r.order[at]
	}
	return nil
}

// maxPart bounds the bytes of one message of several that belong together. A larger item has a message of its own.
const maxPart = 512 << 10

// since returns the changes after a version, in parts of bounded size that are applied together; nil if there are none.
func (r *roster) since(version uint64) (parts []*warmpathv1.FleetUpdate) {
	if version == r.version && version != 0 {
		return nil
	}
	snapshot := version == 0 || version > r.version || version < r.forgot
	if snapshot {
		version = 0
	}
	u := &warmpathv1.FleetUpdate{Version: r.version, Snapshot: snapshot}
	for _, d := range r.left {
		if !snapshot && d.version > version {
			u.Removed = append(u.Removed, d.number)
		}
	}
	news := r.order
	if !snapshot {
		at, _ := slices.BinarySearchFunc(r.joined, version+1, func(m *member, v uint64) int { return cmp.Compare(m.version, v) })
		news = r.joined[at:]
	}
	size := 0
	for _, m := range news {
		switch {
		case r.byID[m.ID] != m: // it is replaced or has left
			continue
		case m.message == nil: // clients must not go on with what it was before
			if !snapshot {
				u.Removed = append(u.Removed, m.number)
			}
			continue
		case size > 0 && size+m.size > maxPart:
			u.More = true
			parts = append(parts, u)
			u, size = &warmpathv1.FleetUpdate{Version: r.version, Snapshot: snapshot}, 0
		}
		size += m.size
		u.Replicas = append(u.Replicas, m.message)
	}
	return append(parts, u)
}

// encode makes the message of a member. A replica of a file or a target may have a description that is larger than
// clients receive.
func (r *roster) encode(m *member) {
	p := admission.Message(m.Attributes)
	p.Number, p.KvTokens, p.KvEvents, p.KvEventsReplay = m.number, uint64(max(m.KVTokens, 0)), "", ""
	if m.size = proto.Size(p); m.size <= maxDescription {
		m.message = p
		return
	}
	r.tally.unpublished.Add(1)
	r.log.Warn("warmpath: the description of a replica is too large to be sent to clients, which do not use the replica: "+
		"declare fewer models and adapters", "replica", m.ID, "bytes", m.size, "most", maxDescription)
}

// maxDescription bounds the description of a replica that clients are sent, in bytes.
const maxDescription = 4 << 20

// has reports whether a number is that of a member.
func (r *roster) has(number uint32) bool { return r.numbered(number) != nil }

// numberOf returns the number of a member, 0 if there is none with this id.
func (r *roster) numberOf(id string) uint32 {
	if m := r.byID[id]; m != nil {
		return m.number
	}
	return 0
}
