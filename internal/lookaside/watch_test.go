package lookaside

import (
	"log/slog"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// listener is a policy that records its observations.
type listener struct {
	changes []policy.CacheChange
	sizes   map[string]int
}

func (p *listener) policy() policy.Policy {
	return policy.Policy{
		Uses: policy.UsesLoad,
		Choose: func(q *policy.Request, v policy.View) policy.Decision {
			return policy.To(v.LeastLoaded(q), policy.ReasonLeastLoaded)
		},
		Observer: policy.Observer{
			CacheChanged:    func(c []policy.CacheChange) { p.changes = append(p.changes, c...) },
			CapacityChanged: func(id string, tokens int) { p.sizes[id] = tokens },
		},
	}
}

func newListener(t testing.TB) (*listener, *router.Router) {
	t.Helper()
	p := &listener{sizes: map[string]int{}}
	r, err := router.NewRouter(router.Options{Policy: p.policy()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return p, r
}

// unstarted is a Watch whose messages come from the test; its balancer attaches a Router as soon as there is a
// fleet.
func unstarted(t testing.TB) (*Watch, *listener, *router.Router) {
	t.Helper()
	p, r := newListener(t)
	w := newWatch(Options{Timing: defaultTiming, Logger: slog.New(slog.DiscardHandler)})
	attached := false
	w.o.Changed = func(w *Watch, s State) {
		setFleet(r, s)
		if !attached {
			attached = true
			t.Cleanup(w.Attach(r))
		}
	}
	return w, p, r
}

func setFleet(r *router.Router, s State) {
	var fleet []router.Member
	for _, x := range s.Replicas {
		fleet = append(fleet, router.Member{Attributes: x})
	}
	r.Fleet.Set(fleet)
}

func peersOf(r *router.Router) map[string]int {
	peers := map[string]int{}
	for _, rep := range r.View().Replicas() {
		peers[rep.ID], _ = rep.PeerLoad()
	}
	return peers
}

func greeting() *warmpathv1.WatchReplicasResponse {
	m := &warmpathv1.WatchReplicasResponse{
		Incarnation: "a",
		Fleet:       snapshot(1, 2),
		Index:       &warmpathv1.IndexUpdate{Version: 4, Snapshot: true, Changes: []*warmpathv1.CacheChange{{Replica: 2, Stored: []uint64{7}}}},
		Load:        &warmpathv1.LoadUpdate{Snapshot: true, Loads: &warmpathv1.Loads{Replicas: []uint32{1, 2}, Ongoing: []uint32{8, 32}, QueuedTokens: []uint64{0, 0}}},
	}
	m.Fleet.Version = 3
	m.Fleet.Replicas[0].KvTokens = 1000
	return m
}

func TestRouterGetsEverything(t *testing.T) {
	w, p, r := unstarted(t)
	w.view.take(greeting(), true)
	require.Equal(t, map[string]int{"r1": 8, "r2": 32}, peersOf(r))
	require.Equal(t, map[string]int{"r1": 1000}, p.sizes)
	require.Equal(t, []policy.CacheChange{{Replica: "r2", Coarse: true, Stored: []uint64{7}}}, p.changes)
	start := w.view.start()
	require.Equal(t, "a", start.GetIncarnation())
	require.Equal(t, []uint64{3, 0, 4}, []uint64{start.GetFleetVersion(), start.GetConfigVersion(), start.GetIndexVersion()})

	// A Router that comes later needs the whole index, until a snapshot of it has begun.
	p2, r2 := newListener(t)
	setFleet(r2, State{Replicas: w.view.members.all()})
	detach := w.Attach(r2)
	require.Equal(t, map[string]int{"r1": 8, "r2": 32}, peersOf(r2))
	require.Equal(t, 1000, p2.sizes["r1"])
	require.Len(t, w.view.resync, 1)
	require.Zero(t, w.view.start().GetIndexVersion())
	require.Empty(t, w.view.resync)
	w.view.take(&warmpathv1.WatchReplicasResponse{Index: &warmpathv1.IndexUpdate{Snapshot: true}}, false)
	require.Equal(t, uint64(4), w.view.start().GetIndexVersion())

	w.view.take(&warmpathv1.WatchReplicasResponse{Index: &warmpathv1.IndexUpdate{Version: 5, Changes: []*warmpathv1.CacheChange{{Replica: 1, Stored: []uint64{9}}}}}, false)
	detach()
	detach()
	require.Equal(t, map[string]int{"r1": 0, "r2": 0}, peersOf(r2))
	require.Equal(t, policy.CacheChange{Replica: "r1", Coarse: true, Cleared: true}, p2.changes[len(p2.changes)-1])
	require.Equal(t, 32, peersOf(r)["r2"])
}

// The weights of the homes reach all Routers, those that come later too, and stay when the server is gone. The calls by
// home are reported once.
func TestHomes(t *testing.T) {
	w, _, r := unstarted(t)
	m := greeting()
	m.Homes = &warmpathv1.HomeUpdate{Replicas: []uint32{1, 2, 9}, Weights: []float32{1.5, 0.5, 3}}
	w.view.take(m, true)
	weights := func(r *router.Router) (all []float64) {
		for _, rep := range r.View().Replicas() {
			all = append(all, math.Float64frombits(part.OfReplica(rep).HomeWeight.Load()))
		}
		return all
	}
	require.Equal(t, []float64{1.5, 0.5}, weights(r))
	_, r2 := newListener(t)
	setFleet(r2, State{Replicas: w.view.members.all()})
	w.Attach(r2)
	require.Equal(t, []float64{1.5, 0.5}, weights(r2))

	for i, r := range []*router.Router{r, r2} {
		r2 := part.OfReplica(r.View().ByID("r2"))
		r2.Book.Homes.Add(1)
		r2.Book.Spilled.Add(uint32(1 - i))
	}
	report := w.view.report(false).GetOutcomes().GetReplicas()
	require.Len(t, report, 1)
	require.Equal(t, []uint32{2, 2, 1}, []uint32{report[0].GetReplica(), report[0].GetHomes(), report[0].GetSpilled()})
	require.Nil(t, w.view.report(false).GetOutcomes())

	other := &warmpathv1.WatchReplicasResponse{Incarnation: "b", Fleet: snapshot(2)}
	w.view.take(other, true)
	weight := func() float64 { return math.Float64frombits(part.OfReplica(r.View().ByID("r2")).HomeWeight.Load()) }
	require.Equal(t, 0.5, weight())
	w.view.take(&warmpathv1.WatchReplicasResponse{Homes: &warmpathv1.HomeUpdate{Replicas: []uint32{2}}}, false)
	require.Equal(t, 1.0, weight(), "columns of unequal length")
}

// A new server has other numbers: the old ones are dropped, the peer load is not.
func TestAnotherIncarnation(t *testing.T) { synctest.Test(t, testAnotherIncarnation) }

func testAnotherIncarnation(t *testing.T) {
	w, _, r := unstarted(t)
	w.view.take(greeting(), true)
	m := &warmpathv1.WatchReplicasResponse{Incarnation: "b", Fleet: snapshot(2)}
	m.Fleet.Replicas[0].Number = 1
	w.view.take(m, true)
	require.Equal(t, map[string]int{"r1": 8, "r2": 32}, peersOf(r))
	require.Zero(t, w.view.start().GetIndexVersion())
	load := func(u *warmpathv1.LoadUpdate) map[string]int {
		w.view.take(&warmpathv1.WatchReplicasResponse{Load: u}, false)
		return peersOf(r)
	}
	// Clients that reconnect at the same time have not reported yet: the server's load lacks them.
	require.Equal(t, map[string]int{"r1": 8, "r2": 32}, load(&warmpathv1.LoadUpdate{Snapshot: true}))
	require.Equal(t, map[string]int{"r1": 8, "r2": 32}, load(&warmpathv1.LoadUpdate{Counted: 1, StaleSet: true, Stale: []uint32{1}}), "its own load is stale")
	require.Equal(t, map[string]int{"r1": 0, "r2": 5}, load(&warmpathv1.LoadUpdate{Counted: 1, StaleSet: true, Loads: &warmpathv1.Loads{
		Replicas: []uint32{1}, Ongoing: []uint32{5}, QueuedTokens: []uint64{0}}}))
	require.Equal(t, map[string]int{"r1": 0, "r2": 7}, load(&warmpathv1.LoadUpdate{Counted: 1, Loads: &warmpathv1.Loads{
		Replicas: []uint32{1}, Ongoing: []uint32{7}, QueuedTokens: []uint64{0}}}))

	// A server without load counts as a silent one.
	load(&warmpathv1.LoadUpdate{Counted: 1, StaleSet: true, Stale: []uint32{1}})
	w.view.mu.Lock()
	defer w.view.mu.Unlock()
	w.view.received = w.view.load.fresh.Add(fadeAfter)
	w.view.fade(w.view.load.fresh.Add(fadeAfter - 1))
	require.Equal(t, 7, peersOf(r)["r2"])
	w.view.fade(w.view.load.fresh.Add(fadeAfter))
	require.Equal(t, 3, peersOf(r)["r2"])
}

// A server that is followed again may still have this client's own load in its first update: it is not peer load.
func TestTheSameIncarnationAgain(t *testing.T) { synctest.Test(t, testTheSameIncarnationAgain) }

func testTheSameIncarnationAgain(t *testing.T) {
	w, _, r := unstarted(t)
	idle := greeting()
	idle.Load.Loads = nil
	w.view.take(idle, true)
	w.view.take(greeting(), true)
	require.Equal(t, map[string]int{"r1": 0, "r2": 0}, peersOf(r))
	w.view.take(&warmpathv1.WatchReplicasResponse{Load: &warmpathv1.LoadUpdate{Counted: 1, Loads: &warmpathv1.Loads{
		Replicas: []uint32{1}, Ongoing: []uint32{3}, QueuedTokens: []uint64{0}}}}, false)
	require.Equal(t, map[string]int{"r1": 3, "r2": 32}, peersOf(r))
}

func TestLoadFades(t *testing.T) {
	w, _, r := unstarted(t)
	w.view.take(greeting(), true)
	fade := func(after time.Duration) int {
		w.view.mu.Lock()
		defer w.view.mu.Unlock()
		w.view.fade(w.view.received.Add(after))
		return peersOf(r)["r2"]
	}
	require.Equal(t, 32, fade(fadeAfter-1))
	var faded []int
	for range 7 {
		faded = append(faded, fade(fadeAfter))
	}
	require.Equal(t, []int{16, 8, 4, 2, 1, 0, 0}, faded)
	require.True(t, slices.IsSortedFunc(faded, func(a, b int) int { return b - a }))
	w.view.take(new(warmpathv1.WatchReplicasResponse), false)
	require.Equal(t, map[string]int{"r1": 8, "r2": 32}, peersOf(r), "valid again without a change")
	fade(fadeAfter)
	w.view.take(&warmpathv1.WatchReplicasResponse{Load: &warmpathv1.LoadUpdate{}}, false)
	require.Equal(t, 32, peersOf(r)["r2"])
}

// Whatever a server sends, the client goes on, and a connected replica stays.
func FuzzTake(f *testing.F) {
	for _, m := range []*warmpathv1.WatchReplicasResponse{
		greeting(),
		{Fleet: &warmpathv1.FleetUpdate{Removed: []uint32{1, 1, 7}, Replicas: named(1, 1, 3)}},
		{Load: &warmpathv1.LoadUpdate{NextMs: 1 << 31, Counted: 1 << 63, Stale: []uint32{1, 2, 9}, StaleSet: true}},
		{Config: &warmpathv1.ConfigUpdate{ServiceConfig: "{"}, Index: &warmpathv1.IndexUpdate{Changes: []*warmpathv1.CacheChange{{Replica: 1, Tier: -1, Cleared: true}}}},
	} {
		raw, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(raw, true)
		f.Add(raw, false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, first bool) {
		var m warmpathv1.WatchReplicasResponse
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		w, p, r := unstarted(t)
		w.view.take(greeting(), true)
		r.Fleet.SetConnected("r1", true)
		for range 2 {
			w.view.take(&m, first)
			for _, rep := range r.View().Replicas() {
				ongoing, tokens := rep.PeerLoad()
				require.False(t, ongoing < 0 || tokens < 0)
			}
		}
		for _, c := range p.changes {
			require.Less(t, int(c.Tier), policy.Tiers)
			require.True(t, c.Coarse)
			require.GreaterOrEqual(t, c.BlockTokens, 0)
		}
		f := watchStream{view: w.view, interval: time.Second}
		require.LessOrEqual(t, f.schedule(m.GetLoad()), renewAfter)
		require.LessOrEqual(t, f.interval, time.Minute)
		there := false
		for _, rep := range w.view.members.all() {
			there = there || rep.ID == "r1"
		}
		require.True(t, there, "connected, and no other is")
	})
}
