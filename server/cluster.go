package server

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/fleet"
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
func (m membership) newPeers(deployment string, t *tally, log *slog.Logger, now time.Time) *peers {
	return &peers{
		bus: m.bus, log: log, tally: t, origin: m.origin, epoch: m.epoch, settles: now.Add(2 * joinTime),
		refused: rate.Sometimes{First: 1, Interval: 10 * time.Second}, beats: make(map[string]bool),
		subject: "warmpath.v1." + base64.RawURLEncoding.EncodeToString([]byte(deployment)),
		known:   make(map[string]*peerServer), total: make(map[string]peerLine),
		lines: make(map[uint32]peerLine), moved: true,
	}
}

// join begins to receive the updates of the other servers, if there is a cluster.
func (d *deployment) join() (stop func(), err error) {
	if d.peers.bus == nil {
		return func() {}, nil
	}
	return d.peers.bus.Subscribe(d.peers.subject, func(data []byte) {
		_ = shielded(d.log, "an update of another server", func() error { return d.received(data) })
	})
}

// received applies an update of another server.
func (d *deployment) received(data []byte) error {
	u := new(warmpathv1.PeerUpdate)
	if err := proto.Unmarshal(data, u); err != nil {
		return err
	}
	var routes []router.Route
	var changes []policy.CacheChange
	d.update(func(own *sources) (moves bool) {
		x := d.peers.received(u, len(data), &d.roster, d.now())
		if x == nil {
			return false
		}
		if len(u.GetOutcomes()) > 0 {
			rt := d.hosted.Load().router
			x.showed(rt, &d.homes, u.GetOutcomes())
			d.judged(rt)
		}
		d.homes.follow(x, u.GetHomes())
		routes, changes = x.cached(u, &d.roster)
		left, missing := own.renewedElsewhere(u.GetHeartbeats())
		joined := own.registeredElsewhere(u.GetRegistrations())
		if own.config.Register {
			x.lacking(missing)
		}
		return left || joined
	})
	h := d.hosted.Load()
	h.routed(routes)
	if h.index != nil && len(changes) > 0 {
		h.router.CacheChanged(changes)
		h.index.take(changes)
	}
	return nil
}

// showed enters outcomes that the clients of another server reported.
func (x *peerServer) showed(rt *router.Router, h *homes, all []*warmpathv1.PeerOutcomes) {
	view := rt.View()
	for _, o := range all {
		if rep := view.ByID(x.ids[o.GetOutcomes().GetReplica()]); rep != nil {
			rt.Outliers().Add(rt.Outlier(rep), o.GetPrincipal(), countsOf(o.GetOutcomes()), o.GetProbe())
			h.add(rep.ID, o.GetOutcomes())
		}
	}
}

// cached returns the routes of an update, and what it reports of caches.
func (x *peerServer) cached(
	u *warmpathv1.PeerUpdate, of *roster,
) (routes []router.Route, changes []policy.CacheChange) {
	for _, r := range u.GetRoutes() {
		routes = append(routes, router.Route{
			Replica: x.ids[r.GetReplica()], Rank: int(r.GetRank()), Superblocks: r.GetSuperblocks(),
		})
	}
	for _, c := range u.GetCaches() {
		switch id := x.ids[c.GetReplica()]; {
		case of.byID[id] == nil || c.GetRank() >= maxRanks || c.GetTier() > policy.Tiers:
		case c.GetRouted(): // of a snapshot: what is predicted here as well stays
			routes = append(routes, router.Route{Replica: id, Rank: int(c.GetRank()), Superblocks: c.GetStored()})
		default:
			changes = append(changes, fleet.CacheChange(id, c))
		}
	}
	return routes, changes
}

// publish sends the other servers what this one has first hand. Called with mu held.
func (d *deployment) publish(leased map[uint32]replicaLoad, now time.Time) {
	h, p := d.hosted.Load(), d.peers
	if p.bus == nil {
		return
	}
	if p.expire(now) {
		h.subscribe(d.roster.order)
	}
	lines := make(map[uint32]peerLine, len(d.roster.order))
	for _, m := range d.roster.order {
		line := peerLine{m.own, max(leased[m.number].tokens-m.own.tokens, 0)}
		line.replicaLoad.add(m.reported, 1)
		lines[m.number] = line
	}
	var changes []*warmpathv1.PeerUpdate
	if h.index != nil {
		updates := h.index.since(p.index, d.roster.numberOf)
		if n := len(updates); n > 0 {
			p.index = updates[n-1].GetVersion()
		}
		changes = p.followed(updates, &d.roster, now, false)
	}
	p.publish(now, &d.sources, lines, changes, func() []*warmpathv1.PeerUpdate {
		decided := ejectionsOf(d.roster.order)
		decided.Homes = d.homes.update(&d.roster)
		all := []*warmpathv1.PeerUpdate{decided}
		if h.index != nil {
			all = append(all, p.followed(h.index.since(0, d.roster.numberOf), &d.roster, now, true)...)
		}
		return all
	})
}

// ejectionsOf are those of members for a peer that needs a snapshot.
func ejectionsOf(members []*member) *warmpathv1.PeerUpdate {
	u := new(warmpathv1.PeerUpdate)
	for _, m := range members {
		if m.ejection != nil {
			u.Outcomes = append(u.Outcomes, &warmpathv1.PeerOutcomes{
				Outcomes: &warmpathv1.ReplicaOutcomes{Replica: m.number, Failures: 1 << 10},
			})
		}
	}
	return u
}

// followed are those of the index's changes whose replicas this server follows; predicted caches only in a snapshot,
// since every server predicts.
func (p *peers) followed(
	updates []*warmpathv1.IndexUpdate, of *roster, now time.Time, predicted bool,
) (all []*warmpathv1.PeerUpdate) {
	for _, from := range updates {
		u := new(warmpathv1.PeerUpdate)
		for _, c := range from.GetChanges() {
			m := of.numbered(c.GetReplica())
			if m != nil && (predicted || !c.GetRouted()) && p.follows(m.ID, now) {
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

// storeOf is the store of a deployment: shared with the other servers, or in memory.
func (m membership) storeOf(deployment string, memory policy.Store) policy.Store {
	if m.bus == nil {
		return memory
	}
	return m.bus.Store(deployment)
}

// clusterStatus is what the status service reports; nil without a cluster.
func (d *deployment) clusterStatus() *warmpathv1.ClusterStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.peers.status(d.now())
}
