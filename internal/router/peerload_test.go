package router

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
)

func TestPeerLoad(t *testing.T) {
	r := connected(t, Options{Policy: choosing(leastLoaded)},
		member("a", room(2)), member("b", func(m *Member) { m.Weight = 2 }))
	a, b := r.View().ByID("a"), r.View().ByID("b")
	require.Zero(t, meanLoad(r.View()))

	r.Load.SetPeers([]load.Peer{{ID: "a", Ongoing: 3, QueuedTokens: 700}, {ID: "gone", Ongoing: 1}})
	ongoing, tokens := a.PeerLoad()
	require.Equal(t, 3, ongoing)
	require.Equal(t, int64(700), tokens)
	require.InDelta(t, 2200, r.View().Load(a), 1e-9)
	require.InDelta(t, 1100, meanLoad(r.View()), 1e-2)
	require.Zero(t, r.View().PeerDrift(), "no damping has learned it")
	r.Load.SetDrift(0.1)
	require.InDelta(t, 110, r.View().PeerDrift(), 1e-9)
	require.Zero(t, a.Ongoing())
	require.Zero(t, a.QueuedTokens())
	require.False(t, a.Full(), "max_ongoing bounds only the Router's own reservations")

	q := &policy.Request{PromptTokens: 500}
	one := pick(t, r, q)
	require.Equal(t, "b", one.Decision.Replica.ID)
	require.InDelta(t, 500, r.View().Load(b), 1e-9)
	r.Load.SetPeers([]load.Peer{{ID: "b", Ongoing: 10, QueuedTokens: 2000}})
	require.InDelta(t, (2500+11*500)/2., r.View().Load(b), 1e-9, "added to the Router's own, divided by the rate")
	require.InDelta(t, 2200, r.View().Load(a), 1e-9, "not named: unchanged")
	require.Equal(t, "a", pick(t, r, q).Decision.Replica.ID)

	r.Load.SetPeers([]load.Peer{{ID: "a", Ongoing: -1, QueuedTokens: -5}, {ID: "b"}})
	one.Release()
	require.Zero(t, r.View().Load(b))
	require.InDelta(t, 1000, r.View().Load(a), 1e-9)
}

// The peer load of a replica ends when it leaves, whether or not the Router had reservations there.
func TestPeerLoadLeavesWithTheReplica(t *testing.T) {
	r := connected(t, Options{}, members(2)...)
	held := pick(t, r, &policy.Request{PromptTokens: 10})
	r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: 5}, {ID: "r1", Ongoing: 5}})
	r.Fleet.Set(nil)
	r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: 7}})
	r.Fleet.Set(members(2))
	connectAll(r)
	for _, rep := range r.View().Replicas() {
		ongoing, _ := rep.PeerLoad()
		require.Zero(t, ongoing, rep.ID)
	}
	require.Equal(t, 1, r.View().ByID("r0").Ongoing())
	held.Release()
	require.Zero(t, meanLoad(r.View()))
	require.Zero(t, r.View().PeerDrift())
}

func TestPeerLoadConcurrently(t *testing.T) {
	r := connected(t, Options{Policy: choosing(leastLoaded)}, members(4)...)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 300 {
				r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: i}, {ID: "r3", QueuedTokens: int64(g)}})
				b := new(Reservation)
				if r.Reserve(t.Context(), &policy.Request{PromptTokens: i}, b, How{NoWait: true}) == nil {
					b.PrefillDone()
					b.Release()
				}
			}
		})
	}
	all.Wait()
	r.Load.SetPeers([]load.Peer{{ID: "r0"}, {ID: "r3"}})
	require.Zero(t, meanLoad(r.View()))
}

func TestSetPeerLoadDoesNotAllocate(t *testing.T) {
	r := connected(t, Options{}, members(3)...)
	loads := []load.Peer{{ID: "r0", Ongoing: 1}, {ID: "r2", QueuedTokens: 5}}
	require.Zero(t, testing.AllocsPerRun(100, func() { r.Load.SetPeers(loads) }))
}
