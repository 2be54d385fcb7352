package server

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// joinTime is how long another server is known before it counts as a follower of KV events: until then it is
	// sent what it does not have. A server that starts waits twice as long.
	joinTime = time.Second
	// maxPeers bounds the servers of a cluster.
	maxPeers = 64
	// maxAnnounced bounds the bytes of descriptions that one interval publishes. The rest waits for the next one, so that
	// no receiver's buffer overflows while a server joins.
	maxAnnounced = 4 << 20
	// maxOutcomes bounds the outcomes of one update.
	maxOutcomes = 20_000
)

// peers is a deployment's part in a cluster: what the other servers publish, and what this one does. Each server
// publishes what it has first hand, so all add up the same. It is used with the deployment's mutex held.
type peers struct {
	bus     cluster.Bus // nil = there is no cluster, and the rest is not used
	log     *slog.Logger
	tally   *tally
	refused rate.Sometimes // when messages that are too large are logged
	subject string
	origin  string
	epoch   string
	config  string    // hash of the deployment's config
	settles time.Time // KV events are followed from then on

	known   map[string]*peerServer // by epoch
	total   map[string]peerLine    // of all peers, by id of the replica
	damping routerload.Damping
	moved   bool // the followers changed since the last interval

	// What is published next.
	sequence uint64
	last     time.Time           // when something was published
	asked    bool                // a peer needs a snapshot
	lines    map[uint32]peerLine // the load as published, of the replicas whose names are
	outcomes []*warmpathv1.PeerOutcomes
	homes    *warmpathv1.HomeUpdate // nil = they are as published
	beats    map[string]bool        // replicas that registered or left, to be published; true = with the description
	routes   router.RouteLog
	index    uint64 // version that is published

	sentBytes, receivedBytes, gaps uint64
}

// A peerLine is the load that servers have first hand on a replica.
type peerLine struct {
	replicaLoad
	cached int64 // prompt tokens of their picks that the load leaves out since they are cached
}

func (l *peerLine) add(o peerLine, sign int64) {
	l.replicaLoad.add(o.replicaLoad, sign)
	l.cached += sign * o.cached
}

// A peerServer is another server.
type peerServer struct {
	origin, epoch, config string

	sequence  uint64
	synced    bool              // no sequence is missed
	filling   bool              // a snapshot is being applied
	lacks     bool              // it had a replica before this server, which left out what it published of the cache
	asked     time.Time         // when a snapshot was requested
	since     time.Time         // when it was met
	counts    bool              // as a follower
	at        time.Time         // of its last update
	missing   map[string]bool   // replicas whose heartbeats had no description here, and led to a request for a snapshot
	ids       map[uint32]string // replicas by its numbers
	has       map[string]bool   // those that it has had, by id
	dropped   bool              // names were left out: too many of them were no members here
	strangers int               // those of has that were no members here when they were named
	lines     map[string]peerLine
}

// received enters an update of so many bytes, and returns its sender, or nil where its contents are no news.
func (p *peers) received(u *warmpathv1.PeerUpdate, size int, of *roster, now time.Time) *peerServer {
	p.receivedBytes += uint64(size)
	x := p.known[u.GetEpoch()]
	switch {
	case u.GetEpoch() == p.epoch, x == nil && (u.GetLeaving() || len(p.known) >= maxPeers):
		return nil
	case u.GetLeaving():
		p.forget(x, "it ended")
		return nil
	case x == nil:
		x = p.meet(u, now)
	}
	p.asked = p.asked || slices.Contains(u.GetWants(), p.epoch)
	x.at = now
	switch follows := u.GetSequence() == x.sequence+1; {
	case x.synced && u.GetSequence() <= x.sequence:
		return nil // it came twice
	case u.GetSnapshot() == warmpathv1.SnapshotPart_SNAPSHOT_PART_FIRST && (x.lacks || !x.synced || !follows):
		p.clear(x)
		clear(x.ids)
		clear(x.has)
		x.synced, x.filling, x.lacks, x.dropped, x.strangers = true, true, false, false, 0
	case !x.synced:
		return nil
	case !follows:
		p.gaps++
		x.synced, x.filling, x.asked = false, false, time.Time{}
		p.log.Warn("warmpath: updates of another server are missing; a snapshot is requested", "peer", x.origin)
		return nil
	case u.GetSnapshot() == warmpathv1.SnapshotPart_SNAPSHOT_PART_UNSPECIFIED:
		x.filling = false
	case !x.filling:
		x.sequence = u.GetSequence()
		return nil // it is known
	}
	x.sequence = u.GetSequence()
	p.enter(x, u, of)
	return x
}

// meet adds a new peer.
func (p *peers) meet(u *warmpathv1.PeerUpdate, now time.Time) *peerServer {
	x := &peerServer{
		origin: u.GetOrigin(), epoch: u.GetEpoch(), ids: make(map[uint32]string), has: make(map[string]bool),
		lines: make(map[string]peerLine), missing: make(map[string]bool),
	}
	x.synced = u.GetSequence() == 1
	x.since, x.asked = now, now // it sends a snapshot by itself
	p.known[x.epoch], p.asked = x, true
	p.log.Info("warmpath: another server joined", "peer", x.origin, "peers", len(p.known))
	return x
}

// maxStrangers bounds the replicas that another server names and that are not members here.
const maxStrangers = 10_000

// name enters the name of a replica, unless there are too many that are no members.
func (p *peers) name(x *peerServer, r *warmpathv1.PeerReplica, of *roster) {
	id := r.GetId()
	stranger := of.byID[id] == nil && !x.has[id]
	_, again := x.ids[r.GetNumber()]
	switch {
	case id == "" || len(id) > maxName:
		return
	case stranger && x.strangers >= maxStrangers, !again && len(x.ids) >= 2*len(of.order)+maxDepartures+maxStrangers:
		x.dropped = true
		return
	case stranger:
		x.strangers++
	}
	x.ids[r.GetNumber()] = id
	p.moved = p.moved || x.counts && !x.has[id]
	x.has[id] = true
}

// enter applies names, load and config of an update.
func (p *peers) enter(x *peerServer, u *warmpathv1.PeerUpdate, of *roster) {
	for _, r := range u.GetNamed() {
		p.name(x, r, of)
	}
	ongoing, tokens, cached := u.GetLoads().GetOngoing(), u.GetLoads().GetQueuedTokens(), u.GetCachedTokens()
	if n := len(u.GetLoads().GetReplicas()); len(ongoing) == n && len(tokens) == n && len(cached) == n {
		for i, number := range u.GetLoads().GetReplicas() {
			if id := x.ids[number]; id != "" {
				p.set(x, id, peerLine{
					replicaLoad{int64(min(ongoing[i], maxOngoing)), int64(min(tokens[i], maxTokens))},
					int64(min(cached[i], maxTokens)),
				})
			}
		}
	}
	if c := u.GetConfig(); c != "" && len(c) <= maxName && c != x.config {
		x.config = c
		if c != p.config {
			p.log.Warn("warmpath: another server has another config of this deployment", "peer", x.origin)
		}
	}
}

func (p *peers) set(x *peerServer, id string, now peerLine) {
	sum := p.total[id]
	sum.add(x.lines[id], -1)
	sum.add(now, 1)
	put(p.total, id, sum)
	put(x.lines, id, now)
}

// clear takes a peer's load back.
func (p *peers) clear(x *peerServer) {
	for id := range x.lines {
		p.set(x, id, peerLine{})
	}
}

func (p *peers) forget(x *peerServer, why string) {
	p.clear(x)
	delete(p.known, x.epoch)
	p.moved = p.moved || x.counts
	p.log.Warn("warmpath: another server left; its clients report to the others", "peer", x.origin, "why", why,
		"peers", len(p.known))
}

// expire forgets the peers that are silent, and reports whether the followers changed since it was called last.
func (p *peers) expire(now time.Time) (moved bool) {
	for _, x := range p.known {
		if now.Sub(x.at) >= staleAfter {
			p.forget(x, "it is silent")
		} else if !x.counts && now.Sub(x.since) >= joinTime {
			x.counts, p.moved = true, true
		}
	}
	if now.Before(p.settles) {
		return false
	}
	moved, p.moved = p.moved, false
	return moved
}

// follows reports whether this server follows the KV events of a replica, and sends its cache in snapshots: the first
// of the live servers that have it does.
func (p *peers) follows(id string, now time.Time) bool {
	return p.first(id, now, func(x *peerServer) bool { return x.has[id] })
}

// leads reports whether this server changes the weights of the homes: the first of the live servers does.
func (p *peers) leads(now time.Time) bool {
	return p.first("", now, func(*peerServer) bool { return true })
}

// first reports whether this server is the first, in the rendezvous order of a key, of the live servers that may be. It
// needs no majority: for a moment, two may be the first.
func (p *peers) first(key string, now time.Time, may func(*peerServer) bool) bool {
	if p.bus == nil {
		return true
	}
	rank := func(epoch string) uint64 { return xxh3.HashString(epoch + "\x00" + key) }
	own := rank(p.epoch)
	for epoch, x := range p.known {
		if x.counts && may(x) && rank(epoch) > own {
			return false
		}
	}
	return !now.Before(p.settles)
}

// joined asks for snapshots of the servers that had one of these new members before, and of those most of whose names
// are of replicas that have left.
func (p *peers) joined(of *roster, fresh []*member) {
	for _, x := range p.known {
		x.lacks = x.lacks || x.dropped && len(fresh) > 0 || len(x.ids) > 2*len(of.order)+maxDepartures
		for _, m := range fresh {
			x.lacks = x.lacks || x.has[m.ID]
		}
	}
}

// damped is the load of all peers on these members, as the Router here is given it: old load is shrunk to the mean. It
// is nil without a cluster.
func (p *peers) damped(order []*member) []routerload.Peer {
	if p.bus == nil {
		return nil
	}
	all := make([]routerload.Peer, len(order))
	for i, m := range order {
		load := p.total[m.ID]
		all[i] = routerload.Peer{ID: m.ID, Ongoing: int(load.ongoing), QueuedTokens: load.tokens}
	}
	p.damping.Damp(all)
	return all
}

// publish sends what has changed since the last time, and a snapshot if a peer needs one. lines is the load of now;
// changes are those of the caches that this server follows; whole returns the caches and ejections of a snapshot. The
// registrations of a snapshot follow it, as all do: some in each interval.
func (p *peers) publish(
	now time.Time, from *sources, lines map[uint32]peerLine, changes []*warmpathv1.PeerUpdate,
	whole func() []*warmpathv1.PeerUpdate,
) {
	of := from.roster
	if !p.asked { // the others have a replica before they read its name, else they would need a snapshot
		p.beat(from, now)
	}
	u := &warmpathv1.PeerUpdate{Outcomes: p.outcomes, Homes: p.homes, Config: p.config}
	for _, x := range p.known {
		if (x.lacks || !x.synced) && now.Sub(x.asked) >= joinTime {
			x.asked = now
			u.Wants = append(u.Wants, x.epoch)
		}
	}
	p.load(u, from, lines)
	u.Routes = numbered(p.routes.Take(), of)
	p.outcomes, p.homes = nil, nil
	news := len(u.Wants) + len(u.Named) + len(u.GetLoads().GetReplicas()) + len(u.Outcomes) + len(u.Routes)
	if news+len(changes) > 0 || u.Homes != nil || now.Sub(p.last) >= aliveInterval {
		p.send(u, now)
	}
	for _, u := range changes {
		p.send(u, now)
	}
	if p.asked {
		clear(p.lines)
		first := &warmpathv1.PeerUpdate{Config: p.config, Snapshot: warmpathv1.SnapshotPart_SNAPSHOT_PART_FIRST}
		p.load(first, from, lines)
		p.send(first, now)
		for _, u := range whole() {
			u.Snapshot = warmpathv1.SnapshotPart_SNAPSHOT_PART_NEXT
			p.send(u, now)
		}
		for id, r := range from.registered {
			if !r.elsewhere {
				p.beats[id] = true
			}
		}
		p.beat(from, now)
	}
	p.asked = false
}

// beat publishes heartbeats, with the description if the others do not have it. Descriptions beyond maxAnnounced wait.
func (p *peers) beat(from *sources, now time.Time) {
	if len(p.beats) == 0 {
		return
	}
	u, room := new(warmpathv1.PeerUpdate), maxAnnounced
	for id, again := range p.beats {
		r := from.registered[id]
		h := &warmpathv1.PeerHeartbeat{Id: id, Leaving: r == nil}
		if r != nil {
			h.LeaseMs = uint32(max(r.until.Sub(now).Milliseconds(), 1))
			if l := r.load; !l.at.IsZero() && l.ongoing >= 0 {
				h.Ongoing = proto.Uint32(uint32(l.ongoing))
			}
			if l := r.load; !l.at.IsZero() && l.tokens >= 0 {
				h.QueuedTokens = proto.Uint64(uint64(l.tokens))
			}
		}
		switch {
		case r == nil || r.announced && !again:
			u.Heartbeats = append(u.Heartbeats, h)
		case room <= 0:
			continue // it stays
		default:
			room -= proto.Size(r.message)
			r.announced = true
			u.Registrations = append(u.Registrations, &warmpathv1.RegisterRequest{
				Replica: r.message, LeaseMs: h.LeaseMs, Ongoing: h.Ongoing, QueuedTokens: h.QueuedTokens,
			})
		}
		delete(p.beats, id)
	}
	p.send(u, now)
}

// lacking requests a snapshot of a peer whose heartbeats name replicas without a description here, once for each
// replica: one that is refused here would be requested for ever.
func (x *peerServer) lacking(missing []string) {
	for _, id := range missing {
		if !x.missing[id] && len(x.missing) < maxRegistered {
			x.missing[id], x.lacks = true, true
		}
	}
}

// load adds the lines that have changed, with the names of their replicas, but for replicas that the others do not have
// yet.
func (p *peers) load(u *warmpathv1.PeerUpdate, from *sources, lines map[uint32]peerLine) {
	u.Loads = new(warmpathv1.Loads)
	add := func(n uint32, l peerLine) {
		if p.lines[n] != l {
			appendLoad(u.Loads, n, l.replicaLoad)
			u.CachedTokens = append(u.CachedTokens, uint64(max(l.cached, 0)))
		}
		p.lines[n] = l
	}
	for _, m := range from.roster.order {
		if _, named := p.lines[m.number]; !named {
			if r := from.registered[m.ID]; r != nil && !r.elsewhere && !r.announced {
				continue
			}
			u.Named = append(u.Named, &warmpathv1.PeerReplica{Number: m.number, Id: m.ID})
		}
		add(m.number, lines[m.number])
	}
	for n := range p.lines { // of replicas that have left
		if _, ok := lines[n]; !ok {
			add(n, peerLine{})
			delete(p.lines, n)
		}
	}
}

// numbered are routes to members as they are sent.
func numbered(all []router.Route, of *roster) (routes []*warmpathv1.Route) {
	for _, r := range all {
		if n := of.numberOf(r.Replica); n != 0 {
			routes = append(routes, &warmpathv1.Route{Replica: n, Rank: uint32(r.Rank), Superblocks: r.Superblocks})
		}
	}
	return routes
}

// leave has the other servers take out what this one has published.
func (p *peers) leave(now time.Time) {
	if p.bus != nil {
		p.send(&warmpathv1.PeerUpdate{Leaving: true}, now)
	}
}

// send publishes an update, in parts of bounded size.
func (p *peers) send(u *warmpathv1.PeerUpdate, now time.Time) {
	p.last = now
	for i, part := range packed(u) {
		if i > 0 && part.Snapshot == warmpathv1.SnapshotPart_SNAPSHOT_PART_FIRST {
			part.Snapshot = warmpathv1.SnapshotPart_SNAPSHOT_PART_NEXT
		}
		part.Origin, part.Epoch, part.Sequence = p.origin, p.epoch, p.sequence+1
		data, err := proto.Marshal(part)
		if err == nil {
			err = p.bus.Publish(p.subject, data)
		}
		if err == nil || !errors.Is(err, cluster.ErrTooLarge) { // a gap in the sequence has a snapshot requested
			p.sequence++
			p.sentBytes += uint64(len(data))
		}
		if err != nil {
			p.tally.unpublished.Add(1)
			p.refused.Do(func() {
				p.log.Warn("warmpath: an update is not sent to the other servers", "error", err)
			})
		}
	}
}

// status is what the status service reports; nil without a cluster.
func (p *peers) status(now time.Time) *warmpathv1.ClusterStatus {
	if p.bus == nil {
		return nil
	}
	a := &warmpathv1.ClusterStatus{
		Origin: p.origin, Connected: p.bus.Connected(),
		SentBytes: p.sentBytes, ReceivedBytes: p.receivedBytes, Gaps: p.gaps,
	}
	for _, x := range p.known {
		a.Peers = append(a.Peers, &warmpathv1.PeerStatus{
			Origin: x.origin, Epoch: x.epoch, AgeMs: uint64(max(now.Sub(x.at).Milliseconds(), 0)), InSync: x.synced,
			SameConfig: x.config == p.config,
		})
	}
	slices.SortFunc(a.Peers, func(a, b *warmpathv1.PeerStatus) int {
		return cmp.Or(cmp.Compare(a.GetOrigin(), b.GetOrigin()), cmp.Compare(a.GetEpoch(), b.GetEpoch()))
	})
	return a
}

// registered notes that a replica registered here, or left.
func (p *peers) registered(id string) {
	if _, known := p.beats[id]; !known && p.bus != nil && len(p.beats) < 2*maxRegistered {
		p.beats[id] = false
	}
}

// showed notes what a client of this server reported of a replica.
func (p *peers) showed(principal string, o *warmpathv1.ReplicaOutcomes, probe bool) {
	if p.bus != nil && len(p.outcomes) < maxOutcomes {
		p.outcomes = append(p.outcomes, &warmpathv1.PeerOutcomes{Principal: principal, Outcomes: o, Probe: probe})
	}
}
