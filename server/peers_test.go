package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/sharedstore"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// wire is a network whose messages are delivered by hand, and may be lost.
type wire struct {
	ends   map[*wireEnd]bool
	unsent []sentOn
}

type sentOn struct {
	from *wireEnd
	data []byte
}

// wireEnd is one server's end of it.
type wireEnd struct {
	*wire
	take func([]byte)
}

var _ cluster.Bus = (*wireEnd)(nil)

func (w *wire) end() *wireEnd {
	e := &wireEnd{wire: w}
	w.ends[e] = true
	return e
}

// Publish takes messages of up to 1 MiB, as NATS does.
func (e *wireEnd) Publish(_ string, data []byte) error {
	if len(data) > 1<<20 {
		return cluster.ErrTooLarge
	}
	e.unsent = append(e.unsent, sentOn{e, data})
	return nil
}

func (e *wireEnd) Subscribe(_ string, take func([]byte)) (func(), error) {
	e.take = take
	return func() { delete(e.ends, e) }, nil
}

func (e *wireEnd) Store(string) policy.Store { return sharedstore.NewMemory(time.Now) }
func (e *wireEnd) Connected() bool           { return true }
func (e *wireEnd) Close()                    {}

// deliver delivers what was published, without what is lost.
func (w *wire) deliver(lost func(from, to *wireEnd) bool) {
	all := w.unsent
	w.unsent = nil
	for _, m := range all {
		for e := range maps.Clone(w.ends) {
			if e != m.from && !lost(m.from, e) {
				e.take(m.data)
			}
		}
	}
}

func nothingLost(_, _ *wireEnd) bool { return false }

// clusterOf has the servers of one deployment, without their listeners.
type clusterOf struct {
	*wire
	*clock
	t       testing.TB
	config  *Config
	servers []*deployment
	ends    []*wireEnd
	lives   int
}

func newCluster(t testing.TB, n int, config string) *clusterOf {
	c := &clusterOf{wire: &wire{ends: make(map[*wireEnd]bool)}, clock: newClock(), t: t, config: parse(t, config)}
	c.servers, c.ends = make([]*deployment, n), make([]*wireEnd, n)
	for i := range n {
		c.start(i)
	}
	t.Cleanup(func() {
		for _, d := range c.servers {
			d.close()
		}
	})
	return c
}

// start starts server i, in the place of one that ended without leaving.
func (c *clusterOf) start(i int) {
	c.lives++
	if old := c.servers[i]; old != nil {
		delete(c.wire.ends, c.ends[i])
		old.close()
		c.wire.unsent = nil
	}
	c.ends[i] = c.wire.end()
	m := membership{bus: c.ends[i], origin: fmt.Sprint("s", i), epoch: fmt.Sprint("life", c.lives)}
	d := newDeployment("chat", discard, c.now, func() {}, recorder(c.t), m)
	x, err := d.prepare(c.config.Deployments["chat"])
	require.NoError(c.t, err)
	x.apply(c.config)
	d.tasks.stop()
	c.servers[i] = d
}

// tick ends an interval everywhere.
func (c *clusterOf) tick(lost func(from, to *wireEnd) bool) {
	c.advance(100 * time.Millisecond)
	for _, d := range c.servers {
		d.tick(c.now())
	}
	c.deliver(lost)
}

func (c *clusterOf) ticks(n int) {
	for range n {
		c.tick(nothingLost)
	}
}

// shown is the load that a server shows, by id of the replica.
func shown(d *deployment, view int) map[string]replicaLoad {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]replicaLoad)
	for _, m := range d.roster.order {
		if l := m.shown[view].replicaLoad; l != (replicaLoad{}) {
			all[m.ID] = l
		}
	}
	return all
}

const clustered = `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {}}
    register: true
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}, {id: c, address: "10.0.0.3:1"}]
`

// choose reserves at a server.
func (c *clusterOf) choose(i int, prompt string) *warmpathv1.ChooseReplicaResponse {
	c.t.Helper()
	r := &warmpathv1.ChooseReplicaRequest{
		Mode: warmpathv1.PickMode_PICK_MODE_RESERVE,
		Key:  &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: prompt}},
	}
	var q policy.Request
	require.NoError(c.t, decodeKey(r, &q))
	a, err := c.servers[i].picks.choose(context.Background(), unrestricted(), r, &q)
	require.NoError(c.t, err)
	return a
}

// client is a watching client of one server.
func (c *clusterOf) client(i int, name string) *watcher {
	w, err := c.servers[i].watch(unrestricted(), &warmpathv1.WatchStart{ClientId: name, Load: true})
	require.NoError(c.t, err)
	return w
}

func (w *watcher) holds(t testing.TB, number uint64, lines map[uint32]replicaLoad) {
	loads := new(warmpathv1.Loads)
	for n, l := range lines {
		appendLoad(loads, n, l)
	}
	require.NoError(t, w.reported(&warmpathv1.ReservationReport{Number: number, Loads: loads, Complete: true}))
}

// Whatever is lost on the way, and whichever servers restart: once messages arrive again, every server shows the
// same load, which is the sum of what the clients hold and of the picks.
func TestClusterConverges(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		const servers = 4
		c := newCluster(t, servers, clustered)
		clients, numbers := make([]*watcher, servers), make([]uint64, servers)
		held := make([]map[uint32]replicaLoad, servers)
		for i := range servers {
			clients[i] = c.client(i, fmt.Sprint("client", i))
		}
		for range 120 {
			i := rnd.IntN(servers)
			switch rnd.IntN(8) {
			case 0:
				c.start(i)
				clients[i], numbers[i], held[i] = c.client(i, fmt.Sprint("client", i)), 0, nil
			case 1, 2:
				a := c.choose(i, fmt.Sprint("a prompt of some length ", rnd.IntN(5)))
				if rnd.IntN(2) == 0 {
					c.servers[i].picks.lived(&warmpathv1.LifeReport{
						Reservation: a.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
					})
				}
			case 3, 4, 5:
				numbers[i]++
				held[i] = map[uint32]replicaLoad{uint32(1 + rnd.IntN(3)): {int64(1 + rnd.IntN(9)), int64(rnd.IntN(5000))}}
				clients[i].holds(t, numbers[i], held[i])
			default:
				c.tick(func(_, _ *wireEnd) bool { return rnd.IntN(4) == 0 })
			}
		}
		for i := range servers { // they report all the time
			numbers[i]++
			clients[i].holds(t, numbers[i], held[i])
		}
		c.ticks(45) // a gap shows within a second, a server that ended without leaving after three
		want := make(map[string]replicaLoad)
		for i, d := range c.servers {
			for n, l := range held[i] {
				sum := want[d.roster.numbered(n).ID]
				sum.add(l, 1)
				want[d.roster.numbered(n).ID] = sum
			}
			for _, rep := range d.hosted.Load().router.View().Replicas() {
				if sum := want[rep.ID]; rep.Ongoing() > 0 {
					sum.add(replicaLoad{int64(rep.Ongoing()), int64(rep.QueuedTokens())}, 1)
					want[rep.ID] = sum
				}
			}
		}
		for i, d := range c.servers {
			require.Equal(t, want, shown(d, exactView), "seed %d, server %d", seed, i)
			require.Equal(t, shown(c.servers[0], uncachedView), shown(d, uncachedView), "seed %d, server %d", seed, i)
			for _, p := range d.clusterStatus().GetPeers() {
				require.True(t, p.GetInSync())
				require.True(t, p.GetSameConfig())
			}
			require.Len(t, d.clusterStatus().GetPeers(), servers-1)
		}
	}
}

// A server that joins has the registrations, the load, the predicted caches and the ejections of the others within
// three intervals.
func TestClusterSnapshot(t *testing.T) {
	c := newCluster(t, 2, clustered)
	c.ticks(25)
	register(t, c.servers[0], "10.0.0.9:1")
	w := c.client(0, "client")
	w.holds(t, 1, map[uint32]replicaLoad{1: {3, 700}})
	prompt := []uint64{11, 12, 13}
	require.NoError(t, w.routed(&warmpathv1.RouteReport{Routes: []*warmpathv1.Route{{Replica: 2, Superblocks: prompt}}}))
	for range 5 {
		require.NoError(t, w.showed(&warmpathv1.OutcomeReport{
			Replicas: []*warmpathv1.ReplicaOutcomes{{Replica: 3, Failures: 1}},
		}))
	}
	c.ticks(2)
	c.start(1)
	c.ticks(3)
	d := c.servers[1]
	require.Equal(t, map[string]replicaLoad{"a": {3, 700}}, shown(d, exactView))
	require.Contains(t, d.roster.byID, "10.0.0.9:1")
	require.Equal(t, 3, d.hosted.Load().index.size())
	rt := d.hosted.Load().router
	state, _ := rt.Outliers().State(rt.Outlier(rt.View().ByID("c")))
	require.Equal(t, outlier.Ejected, state)

	// All servers have what a replica reports to one, and the replica leaves all of them.
	leave := &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Address: "10.0.0.9:1"}, Leaving: true}
	c.servers[0].update(func(x *sources) (changed bool) {
		m, err := decodeReplica(leave.GetReplica())
		require.NoError(t, err)
		_, changed, err = x.register(leave, m)
		require.NoError(t, err)
		c.servers[0].peers.registered(m.ID)
		return changed
	})
	c.ticks(1)
	require.NotContains(t, d.roster.byID, "10.0.0.9:1")
}

func register(t testing.TB, d *deployment, address string) {
	registers(t, d, &warmpathv1.Replica{Address: address})
}

// registers sends a server the heartbeats of replicas.
func registers(t testing.TB, d *deployment, all ...*warmpathv1.Replica) {
	var wrong error
	d.update(func(x *sources) (changed bool) {
		for _, r := range all {
			m, err := decodeReplica(r)
			if err != nil {
				wrong = err
				continue
			}
			_, moved, err := x.register(&warmpathv1.RegisterRequest{Replica: r}, m)
			wrong = cmp.Or(wrong, err)
			d.peers.registered(m.ID)
			changed = changed || moved
		}
		return changed
	})
	require.NoError(t, wrong)
}

// adapted are replicas with as many adapters as make their descriptions of a size.
func adapted(n, size int) []*warmpathv1.Replica {
	all := make([]*warmpathv1.Replica, n)
	for i := range all {
		all[i] = &warmpathv1.Replica{Id: fmt.Sprint("r", i), Address: fmt.Sprintf("10.%d.%d.%d:1", 1+i>>16, i>>8&255, i&255)}
		for k := 0; proto.Size(all[i]) < size-210; k++ {
			all[i].Adapters = append(all[i].Adapters, fmt.Sprintf("%0200d", k))
		}
	}
	return all
}

// A server that joins knows all replicas, however large their descriptions are together, and from then on a heartbeat
// costs a few bytes, and a change what the changed replica weighs.
func TestClusterWithLargeDescriptions(t *testing.T) {
	for _, of := range []struct{ replicas, size int }{{9_999, 4 << 10}, {100, 250_000}} {
		t.Run(fmt.Sprint(of.replicas), func(t *testing.T) {
			c := newCluster(t, 2, clustered)
			c.ticks(25)
			all := adapted(of.replicas, of.size)
			registers(t, c.servers[0], all...)
			known := func() int { return len(c.servers[1].roster.order) - 3 }
			for i := 0; known() < of.replicas && i < 40; i++ {
				c.tick(nothingLost)
			}
			require.Equal(t, of.replicas, known())
			c.start(1)
			require.Zero(t, known())
			for i := 0; known() < of.replicas && i < 40; i++ {
				c.tick(nothingLost)
			}
			require.Equal(t, of.replicas, known())
			last := c.servers[1].roster.byID[all[of.replicas-1].GetId()]
			require.Equal(t, all[of.replicas-1].GetAdapters(), last.Adapters)

			c.ticks(20)
			sent := func(heartbeats ...*warmpathv1.Replica) uint64 {
				before := c.servers[0].peers.sentBytes
				registers(t, c.servers[0], heartbeats...)
				c.ticks(1)
				return c.servers[0].peers.sentBytes - before
			}
			require.Less(t, sent(all[:100]...), uint64(100*100))
			moved := proto.CloneOf(all[1])
			moved.Draining = true
			require.Less(t, sent(moved), uint64(of.size+5000))
			require.True(t, c.servers[1].roster.byID[moved.GetId()].Draining)
			fresh := proto.CloneOf(all[2])
			fresh.Id, fresh.Address = "fresh", "10.0.0.200:1"
			before := c.servers[0].peers.sentBytes
			sent(fresh)
			c.ticks(15)
			require.Less(t, c.servers[0].peers.sentBytes-before, uint64(of.size+50_000), "no snapshot for a new replica")
			require.Contains(t, c.servers[1].roster.byID, "fresh")
			for _, d := range c.servers {
				require.Zero(t, d.clusterStatus().GetGaps())
				require.Zero(t, d.describe(exactView).GetUnpublished())
			}
		})
	}
}

// A server that has lost the description of a replica asks for it when the next heartbeat of the replica comes.
func TestClusterAsksForAMissingDescription(t *testing.T) {
	c := newCluster(t, 2, clustered)
	c.ticks(25)
	register(t, c.servers[0], "10.0.0.9:1")
	c.ticks(1)
	c.servers[1].update(func(x *sources) bool { clear(x.registered); return true })
	require.NotContains(t, c.servers[1].roster.byID, "10.0.0.9:1")
	register(t, c.servers[0], "10.0.0.9:1")
	c.ticks(15)
	require.Contains(t, c.servers[1].roster.byID, "10.0.0.9:1")
}

// An update that the bus does not take is counted, and the other updates arrive.
func TestClusterCountsWhatIsTooLarge(t *testing.T) {
	c := newCluster(t, 2, clustered)
	c.ticks(25)
	c.servers[0].peers.outcomes = append(c.servers[0].peers.outcomes, &warmpathv1.PeerOutcomes{
		Principal: strings.Repeat("p", 2<<20), Outcomes: &warmpathv1.ReplicaOutcomes{Replica: 1},
	})
	c.client(0, "client").holds(t, 1, map[uint32]replicaLoad{1: {3, 700}})
	c.ticks(2)
	require.EqualValues(t, 1, c.servers[0].describe(exactView).GetUnpublished())
	require.Zero(t, c.servers[1].clusterStatus().GetGaps())
	require.Equal(t, map[string]replicaLoad{"a": {3, 700}}, shown(c.servers[1], exactView))
}

// What another server names is bounded, whatever it names. Its own replicas count all the same.
func TestClusterBoundsTheNamesOfOthers(t *testing.T) {
	c := newCluster(t, 2, clustered)
	c.ticks(25)
	d := c.servers[1]
	for i := range uint64(30) {
		u := &warmpathv1.PeerUpdate{Epoch: "stranger", Sequence: i + 1, Loads: new(warmpathv1.Loads)}
		for k := range uint32(1000) {
			n := uint32(i)*1000 + k + 10
			u.Named = append(u.Named, &warmpathv1.PeerReplica{Number: n, Id: fmt.Sprint("unknown", n)})
			appendLoad(u.Loads, n, replicaLoad{1, 1})
			u.CachedTokens = append(u.CachedTokens, 0)
		}
		if i == 29 {
			u.Named = append(u.Named, &warmpathv1.PeerReplica{Number: 1, Id: "a"}, &warmpathv1.PeerReplica{Number: 2, Id: strings.Repeat("x", 1000)})
			appendLoad(u.Loads, 1, replicaLoad{4, 800})
			u.CachedTokens = append(u.CachedTokens, 0)
		}
		data, err := proto.Marshal(u)
		require.NoError(t, err)
		require.NoError(t, d.received(data))
	}
	x := d.peers.known["stranger"]
	require.Len(t, x.has, maxStrangers+1)
	require.Len(t, x.ids, maxStrangers+1)
	require.Len(t, d.peers.total, maxStrangers+1)
	c.advance(100 * time.Millisecond)
	d.tick(c.now())
	require.Equal(t, map[string]replicaLoad{"a": {4, 800}}, shown(d, exactView))
}

// What is packed is what was to be packed, in parts of bounded size.
func TestPacked(t *testing.T) {
	u := &warmpathv1.PeerUpdate{
		Config: "c", Wants: []string{"w"}, Snapshot: warmpathv1.SnapshotPart_SNAPSHOT_PART_NEXT,
		Homes: &warmpathv1.HomeUpdate{Version: 3, Replicas: []uint32{1}, Weights: []float32{2}},
		Loads: new(warmpathv1.Loads),
	}
	for i := range 20_000 {
		id := fmt.Sprintf("%0100d", i)
		u.Named = append(u.Named, &warmpathv1.PeerReplica{Number: uint32(i), Id: id})
		appendLoad(u.Loads, uint32(i), replicaLoad{int64(i), 1 << 30})
		u.CachedTokens = append(u.CachedTokens, uint64(i))
		u.Outcomes = append(u.Outcomes, &warmpathv1.PeerOutcomes{Principal: id, Outcomes: &warmpathv1.ReplicaOutcomes{Replica: uint32(i)}})
		u.Routes = append(u.Routes, &warmpathv1.Route{Replica: uint32(i), Superblocks: []uint64{1, 2, 3, uint64(i)}})
		u.Heartbeats = append(u.Heartbeats, &warmpathv1.PeerHeartbeat{Id: id})
	}
	for _, r := range adapted(20, 100_000) {
		u.Registrations = append(u.Registrations, &warmpathv1.RegisterRequest{Replica: r})
	}
	hashes := make([]uint64, 200_000)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	u.Caches = []*warmpathv1.CacheChange{
		{Replica: 1, Stored: hashes[:5]},
		{Replica: 2, Rank: 1, Cleared: true, Removed: hashes, Stored: hashes},
	}
	whole, stored, removed, cleared := new(warmpathv1.PeerUpdate), []uint64(nil), []uint64(nil), 0
	all := packed(proto.CloneOf(u))
	require.Greater(t, len(all), 5)
	for _, part := range all {
		require.LessOrEqual(t, proto.Size(part), maxPart+1024)
		require.Equal(t, u.GetSnapshot(), part.GetSnapshot())
		for _, x := range part.GetCaches() {
			if x.GetReplica() == 2 {
				require.EqualValues(t, 1, x.GetRank())
				if x.GetCleared() {
					cleared++
					require.Empty(t, append(removed, stored...), "clears first")
				}
				removed, stored = append(removed, x.GetRemoved()...), append(stored, x.GetStored()...)
			}
		}
		proto.Merge(whole, part)
	}
	require.Equal(t, hashes, removed)
	require.Equal(t, hashes, stored)
	require.Equal(t, 1, cleared)
	whole.Caches, u.Caches = nil, nil
	require.True(t, proto.Equal(u, whole))
}

// A partitioned server goes on with what it has, and the others without it; when it is back, all agree again.
func TestClusterHealsAPartition(t *testing.T) {
	c := newCluster(t, 3, clustered)
	c.ticks(3)
	w := c.client(0, "client")
	w.holds(t, 1, map[uint32]replicaLoad{1: {3, 700}})
	c.ticks(2)
	cut := func(from, to *wireEnd) bool { return from == c.ends[0] || to == c.ends[0] }
	for i := range 40 {
		w.holds(t, uint64(i+2), map[uint32]replicaLoad{1: {4, 800}})
		c.tick(cut)
	}
	require.Equal(t, map[string]replicaLoad{"a": {4, 800}}, shown(c.servers[0], exactView))
	require.Empty(t, c.servers[0].clusterStatus().GetPeers(), "it is alone")
	require.Empty(t, shown(c.servers[1], exactView))
	require.Len(t, c.servers[1].clusterStatus().GetPeers(), 1)
	w.holds(t, 100, map[uint32]replicaLoad{1: {4, 800}})
	c.ticks(4)
	for _, d := range c.servers {
		require.Equal(t, map[string]replicaLoad{"a": {4, 800}}, shown(d, exactView))
		require.Len(t, d.clusterStatus().GetPeers(), 2)
	}
}

// Exactly one server follows each replica's KV events and publishes the superblocks; another server takes its
// place.
func TestClusterFollowsEventsOnce(t *testing.T) {
	c := newCluster(t, 3, clustered)
	c.ticks(25)
	followers := func() map[string]int {
		all := make(map[string]int)
		for i, d := range c.servers {
			for id, on := range *d.hosted.Load().followed.Load() {
				if on {
					_, twice := all[id]
					require.False(t, twice, id)
					all[id] = i
				}
			}
		}
		require.Len(t, all, 3)
		return all
	}
	for id, i := range followers() {
		c.servers[i].hosted.Load().changed([]policy.CacheChange{{
			Replica: id, BlockTokens: 16, Coarse: true, Stored: []uint64{1, 2, 3, 4},
		}})
		c.servers[(i+1)%3].hosted.Load().changed([]policy.CacheChange{{ // of a subscription that has ended
			Replica: id, BlockTokens: 16, Coarse: true, Cleared: true,
		}})
	}
	c.ticks(1)
	for _, d := range c.servers {
		require.Equal(t, 12, d.hosted.Load().index.size())
	}
	for range 35 { // it sends nothing for three seconds
		c.tick(func(from, to *wireEnd) bool { return from == c.ends[0] || to == c.ends[0] })
	}
	c.start(0)
	c.ticks(25)
	followers()
	require.Equal(t, 12, c.servers[0].hosted.Load().index.size())
	for _, d := range c.servers {
		d.update(func(x *sources) bool { x.config.Replicas = x.config.Replicas[:1]; return true })
	}
	c.ticks(1)
	for _, d := range c.servers {
		require.Equal(t, 4, d.hosted.Load().index.size(), "nothing is kept of replicas that have left")
	}
}

// A replica that one server has before the others, as targets are resolved at other times, is followed by that one. If
// it still is once the others have it, they are sent its cache; else another one asks the engine.
func TestClusterReplicaOfOneServer(t *testing.T) {
	stays := 0
	for first := range 3 {
		c := newCluster(t, 3, clustered)
		c.ticks(25)
		add := func(i int) {
			c.servers[i].update(func(x *sources) bool {
				x.config.Replicas = append(slices.Clone(x.config.Replicas), policy.Attributes{ID: "d", Address: "10.0.0.4:1"})
				return true
			})
			c.ticks(15)
		}
		followers := func() (all []int) {
			for i, d := range c.servers {
				if (*d.hosted.Load().followed.Load())["d"] {
					all = append(all, i)
				}
			}
			return all
		}
		add(first)
		require.Equal(t, []int{first}, followers())
		c.servers[first].hosted.Load().changed([]policy.CacheChange{{
			Replica: "d", BlockTokens: 16, Coarse: true, Stored: []uint64{1, 2, 3},
		}})
		c.ticks(1)
		for i := 1; i < 3; i++ {
			add((first + i) % 3)
			require.Len(t, followers(), 1)
		}
		if followers()[0] == first {
			stays++
			for _, d := range c.servers {
				require.Equal(t, 3, d.hosted.Load().index.size())
				require.Zero(t, d.clusterStatus().GetGaps())
			}
		}
		number := c.servers[0].roster.numberOf("d") // of the same place in each roster
		c.client(first, "client").holds(t, 1, map[uint32]replicaLoad{number: {3, 700}})
		c.ticks(2)
		for _, d := range c.servers {
			require.Equal(t, map[string]replicaLoad{"d": {3, 700}}, shown(d, exactView))
		}
	}
	require.Equal(t, 1, stays)
}

// Routes that a server's clients report, or that it picks, are in every server's prediction.
func TestClusterSharesRoutes(t *testing.T) {
	c := newCluster(t, 2, clustered)
	c.ticks(25)
	c.servers[0].hosted.Load().received([]router.Route{{Replica: "b", Superblocks: []uint64{5, 6}}})
	c.ticks(2)
	require.Equal(t, 2, c.servers[1].hosted.Load().index.size())
	c.ticks(3)
	require.Equal(t, 2, c.servers[0].hosted.Load().index.size(), "the route is not repeated")
}
