package server

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A membership is a server's part in a cluster; without a bus there is none.
type membership struct {
	bus           cluster.Bus
	origin, epoch string
}

// joinCluster opens the bus of a config that has one.
func joinCluster(c *Config, epoch string, log *slog.Logger) (m membership, err error) {
	if c.Cluster.NATS == nil {
		return membership{}, nil
	}
	if cluster.Open == nil {
		return membership{}, fmt.Errorf("cluster.%w", cluster.ErrNotLinked)
	}
	host, _ := os.Hostname() // empty = not known
	m = membership{origin: host + "/" + c.Listen, epoch: epoch}
	if m.bus, err = cluster.Open(c.Cluster, log); err != nil {
		return membership{}, fmt.Errorf("cluster.%w", err)
	}
	return m, nil
}

// newPeers returns a deployment's part in a cluster.
func (m membership) newPeers(deployment string, log *slog.Logger, now time.Time) *peers {
	return &peers{
		bus: m.bus, log: log, origin: m.origin, epoch: m.epoch, settles: now.Add(2 * joinTime),
		subject: "warmpath.v1." + base64.RawURLEncoding.EncodeToString([]byte(deployment)),
		known:   make(map[string]*peerServer), total: make(map[string]replicaLoad), cached: make(map[string]int64),
		named: make(map[uint32]bool), lines: make(map[uint32]peerLine), moved: true,
	}
}

// An exchange joins a deployment to the other servers of its cluster: what they publish goes in, and what this server
// has first hand goes out. The deployment's mutex guards its peers.
type exchange struct{ d *deployment }

// join begins to receive the updates of the other servers.
func (e exchange) join() error {
	if e.d.peers.bus == nil {
		return nil
	}
	stop, err := e.d.peers.bus.Subscribe(e.d.peers.subject, func(data []byte) {
		_ = shielded(e.d.log, "an update of another server", func() error { return e.received(data) })
	})
	e.d.leave = func() {
		stop()
		e.d.mu.Lock()
		defer e.d.mu.Unlock()
		e.d.peers.send(&warmpathv1.PeerUpdate{Leaving: true}, e.d.now())
	}
	return err
}

// received applies an update of another server.
func (e exchange) received(data []byte) error {
	u := new(warmpathv1.PeerUpdate)
	if err := proto.Unmarshal(data, u); err != nil {
		return err
	}
	routes, changes := e.receive(u, len(data))
	h := e.d.hosted.Load()
	h.routed(routes)
	if h.index != nil && len(changes) > 0 {
		h.router.CacheChanged(changes)
		h.index.take(changes)
	}
	return nil
}

// receive applies all of an update but its cache changes, which it returns.
func (e exchange) receive(u *warmpathv1.PeerUpdate, size int) (routes []router.Route, changes []policy.CacheChange) {
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	if e.d.closed {
		return nil, nil
	}
	e.d.peers.receivedBytes += uint64(size)
	x, news := e.d.peers.received(u, e.d.now())
	if !news {
		return nil, nil
	}
	e.registeredElsewhere(u.GetRegistrations())
	e.showedElsewhere(x, u.GetOutcomes())
	for _, r := range u.GetRoutes() {
		routes = append(routes, router.Route{
			Replica: x.ids[r.GetReplica()], Rank: int(r.GetRank()), Superblocks: r.GetSuperblocks(),
		})
	}
	for _, c := range u.GetCaches() {
		switch id := x.ids[c.GetReplica()]; {
		case e.d.roster.byID[id] == nil || c.GetRank() >= maxRanks || c.GetTier() > policy.Tiers:
		case c.GetRouted(): // of a snapshot: what is predicted here as well stays
			routes = append(routes, router.Route{Replica: id, Rank: int(c.GetRank()), Superblocks: c.GetStored()})
		default:
			changes = append(changes, cacheChange(id, c))
		}
	}
	return routes, changes
}

// registeredElsewhere applies heartbeats that another server received. Called with mu held.
func (e exchange) registeredElsewhere(all []*warmpathv1.RegisterRequest) {
	changed := false
	for _, r := range all {
		m, err := decodeReplica(r.GetReplica())
		if err != nil {
			continue
		}
		_, moves, err := e.d.sources.register(r, m)
		if own := e.d.sources.registered[m.ID]; own != nil {
			own.elsewhere = err == nil
		}
		changed = changed || moves
	}
	if changed && e.d.refleet() {
		e.d.wake.give()
	}
}

// showedElsewhere enters outcomes that another server's clients reported. Called with mu held.
func (e exchange) showedElsewhere(x *peerServer, all []*warmpathv1.PeerOutcomes) {
	rt := e.d.hosted.Load().router
	view := rt.View()
	for _, o := range all {
		if rep := view.ByID(x.ids[o.GetOutcomes().GetReplica()]); rep != nil {
			rt.Outliers().Add(rt.Outlier(rep), o.GetPrincipal(), countsOf(o.GetOutcomes()), o.GetProbe())
		}
	}
	if len(all) > 0 {
		e.d.judged(rt)
	}
}

// publish sends the other servers what this one has first hand. uncached is the load of the picks made here, as if no
// prompt were cached. Called with mu held.
func (e exchange) publish(uncached map[uint32]replicaLoad, now time.Time) {
	h, p := e.d.hosted.Load(), e.d.peers
	if p.expire(now) {
		h.subscribe(e.d.roster.order)
	}
	if p.bus == nil {
		return
	}
	view, lines := h.router.View(), make(map[uint32]peerLine, len(e.d.roster.order))
	for _, m := range e.d.roster.order {
		rep := view.ByID(m.ID)
		own := replicaLoad{int64(rep.Ongoing()), int64(rep.QueuedTokens())}
		line := peerLine{own, max(uncached[m.number].tokens-own.tokens, 0)}
		line.add(m.reported, 1)
		lines[m.number] = line
	}
	var changes []*warmpathv1.PeerUpdate
	if h.index != nil {
		changes = e.followed(h.index.since(p.index, e.d.roster.numberOf), false)
		p.index = h.index.at()
	}
	p.publish(now, e.d.roster.order, lines, changes, func() []*warmpathv1.PeerUpdate { return e.snapshot(h) })
}

// snapshot is what a peer needs beside the load: ejections, the caches that this server follows or answers for, and the
// registrations that it has first hand.
func (e exchange) snapshot(h *hosted) (all []*warmpathv1.PeerUpdate) {
	u := new(warmpathv1.PeerUpdate)
	for _, m := range e.d.ejected {
		u.Outcomes = append(u.Outcomes, &warmpathv1.PeerOutcomes{
			Outcomes: &warmpathv1.ReplicaOutcomes{Replica: m.number, Failures: 1 << 10},
		})
	}
	var beats []*warmpathv1.RegisterRequest
	for _, r := range e.d.sources.registered {
		if left := r.until.Sub(e.d.now()).Milliseconds(); !r.elsewhere && left > 0 {
			beat := proto.CloneOf(r.request)
			beat.LeaseMs = uint32(left)
			beats = append(beats, beat)
		}
	}
	all = append(beatsOf(beats), u)
	if h.index != nil {
		all = append(all, e.followed(h.index.since(0, e.d.roster.numberOf), true)...)
	}
	return all
}

// followed are those of the index's changes whose replicas this server follows; predicted caches only in a snapshot,
// since every server predicts.
func (e exchange) followed(updates []*warmpathv1.IndexUpdate, predicted bool) (all []*warmpathv1.PeerUpdate) {
	now := e.d.now()
	for _, from := range updates {
		u := new(warmpathv1.PeerUpdate)
		for _, c := range from.GetChanges() {
			m := e.d.roster.numbered(c.GetReplica())
			if m != nil && (predicted || !c.GetRouted()) && e.d.peers.follows(m.ID, now) {
				u.Caches = append(u.Caches, c)
			}
		}
		if len(u.Caches) > 0 {
			all = append(all, u)
		}
	}
	return all
}

// countsOf are the counts of a report, bounded.
func countsOf(o *warmpathv1.ReplicaOutcomes) outlier.Counts {
	count := func(n uint32) int { return int(min(n, 1<<20)) }
	return outlier.Counts{
		Successes: count(o.GetSuccesses()), Failures: count(o.GetFailures()), Late: count(o.GetLate()),
	}
}

// hashOf is the hash of a config that servers compare.
func hashOf(config string) string {
	sum := xxh3.HashString128(config).Bytes()
	return hex.EncodeToString(sum[:])
}

// storeOf is the store of a deployment: shared with the other servers, or in memory.
func (m membership) storeOf(deployment string, memory policy.Store) policy.Store {
	if m.bus == nil {
		return memory
	}
	return m.bus.Store(deployment)
}

func (e exchange) status() *warmpathv1.ClusterStatus {
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	return e.d.peers.status(e.d.now())
}

// inSync returns how many other servers no update is missed of.
func (e exchange) inSync() (n int64) {
	for _, p := range e.status().GetPeers() {
		if p.GetInSync() {
			n++
		}
	}
	return n
}
