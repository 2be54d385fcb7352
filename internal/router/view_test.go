package router

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestPools(t *testing.T) {
	fleet := []Member{
		member("far", at("n9", "z9"), adapters("x", "y")),
		member("zone", at("n1", "z0"), adapters("y")),
		member("node", at("n0", "z0"), adapters("x", "y", "z")),
		member("zone2", at("n2", "z0"), adapters("z")),
	}
	r := connected(t, Options{Node: "n0", Zone: "z0"}, fleet...)
	far := r.View().ByID("far")
	retried := &policy.Request{Adapter: "x"}
	NextAttempt(retried, far)
	plain := connected(t, Options{}, members(2)...)
	again := new(policy.Request)
	NextAttempt(again, plain.View().ByID("r0"))
	for name, c := range map[string]struct {
		r     *Router
		q     *policy.Request
		pools []string
		least string
	}{
		"locality":       {r, new(policy.Request), []string{"node", "zone node zone2", "far zone node zone2"}, "node"},
		"adapter":        {r, &policy.Request{Adapter: "x"}, []string{"far node", "zone zone2", "far zone node zone2"}, "far"},
		"cold adapter":   {r, &policy.Request{Adapter: "w"}, []string{"zone zone2", "far zone node zone2"}, "zone"},
		"untried first":  {r, retried, []string{"node", "zone zone2", "zone node zone2", "far node", "zone zone2", "far zone node zone2"}, "node"},
		"no preferences": {plain, &policy.Request{Adapter: "x"}, []string{"r0 r1"}, "r0"},
		"retry":          {plain, again, []string{"r1", "r0 r1"}, "r1"},
	} {
		t.Run(name, func(t *testing.T) {
			v := c.r.View()
			require.Equal(t, c.pools, takes(v, c.q))
			require.Equal(t, c.least, v.LeastLoaded(c.q).ID)
		})
	}
	r.Fleet.SetConnected("node", false)
	require.Equal(t, []string{"zone zone2", "far zone zone2"}, takes(r.View(), new(policy.Request)))
}

// takes lists the replicas that would be taken in each pool.
func takes(v policy.View, q *policy.Request) (pools []string) {
	for i := 0; ; i++ {
		p, ok := v.Pool(q, i)
		if !ok {
			return pools
		}
		ids := ""
		for _, r := range p.Replicas {
			if p.Takes(r) {
				ids += " " + r.ID
			}
		}
		pools = append(pools, ids[min(1, len(ids)):])
	}
}

func TestLeastLoaded(t *testing.T) {
	r := connected(t, Options{Policy: choosing(leastLoaded), MaxOngoing: 2},
		member("a"), member("b", func(m *Member) { m.Weight = 4 }), member("c", draining))
	var got string
	for range 4 {
		got += pick(t, r, &policy.Request{PromptTokens: 100}).Decision.Replica.ID
	}
	require.Equal(t, "abba", got, "ties to the first; a heavier replica carries more; full replicas are skipped")
	require.Nil(t, r.View().LeastLoaded(new(policy.Request)))
	require.Equal(t, ErrFull, r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}))
}

// A load is the reserved load divided by the rate, through all changes of either.
func TestLoadThroughChanges(t *testing.T) {
	heavy := func(m *Member) { m.Weight = 8 }
	r := connected(t, Options{Policy: choosing(leastLoaded)}, member("a"), member("b"))
	exact := func(want float64) {
		t.Helper()
		require.InDelta(t, want, meanLoad(r.View()), 1e-6)
	}
	require.Zero(t, meanLoad(r.View()))
	b := pick(t, r, &policy.Request{PromptTokens: 1500})
	exact(1000)
	r.Fleet.Set([]Member{member("a", heavy), member("b")})
	exact(125)
	r.Fleet.SetConnected("a", false)
	exact(0)
	b.PrefillDone()
	r.Fleet.SetConnected("a", true)
	exact(500. / 8 / 2)
	r.Fleet.Set([]Member{member("b")})
	b.Release()
	exact(0)
	r.Fleet.Disconnect()
	require.Zero(t, meanLoad(r.View()))
}

func TestCapacity(t *testing.T) {
	for own, want := range map[int]int{0: 7, 3: 3, -1: 0} {
		require.Equal(t, want, connected(t, Options{MaxOngoing: 7}, member("a", room(own))).View().ByID("a").Capacity())
	}
	require.Zero(t, connected(t, Options{MaxOngoing: -1}, member("a")).View().ByID("a").Capacity())
}
