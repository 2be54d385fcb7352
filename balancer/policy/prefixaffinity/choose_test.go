package prefixaffinity

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/routertest"
)

// busy reserves a prompt of so many tokens on a replica.
func busy(t testing.TB, r *router.Router, id string, tokens int) *router.Reservation {
	t.Helper()
	return policytest.Pick(t, r, &policy.Request{Pin: id, PromptTokens: tokens})
}

// Each case is one fleet of 16 and one conversation whose first turn, 800 tokens,
// was routed. places is the rendezvous order of its key.
func TestSteps(t *testing.T) {
	first, second := tokens(1, 800), tokens(2, 200)
	for _, tt := range []struct {
		name    string
		config  func(*Config)
		before  func(r *router.Router, places []string)
		request *policy.Request
		place   int
		why     policy.Reason
		matched int
	}{
		{
			name: "the next turn finds the holder", request: ask(first, second),
			why: policy.ReasonPrefixMatch, matched: 800,
		}, {
			name: "so does the same prompt", request: ask(first),
			why: policy.ReasonPrefixMatch, matched: 800,
		}, {
			name: "too little matches: by the rendezvous order all the same", request: ask(first[:80], tokens(3, 800)),
			why: policy.ReasonRendezvous, // by the distinguishing block
		}, {
			name: "the holder is overloaded", request: ask(first, second),
			before: func(r *router.Router, places []string) { busy(t, r, places[0], 50_000) },
			place:  1, why: policy.ReasonRendezvousSpill,
		}, {
			name: "as loaded as slack and reuse allow", request: ask(first, second),
			before: func(r *router.Router, places []string) { busy(t, r, places[0], 4_000+3*800-500) },
			why:    policy.ReasonPrefixMatch, matched: 800,
		}, {
			name: "a token more", request: ask(first, second),
			before: func(r *router.Router, places []string) { busy(t, r, places[0], 4_000+3*800-500+1) },
			place:  1, why: policy.ReasonRendezvousSpill,
		}, {
			name: "the least loaded counts", request: ask(first, second),
			before: func(r *router.Router, places []string) {
				for _, id := range places {
					busy(t, r, id, 30_000)
				}
				busy(t, r, places[0], 4_000+3*800-500)
			},
			why: policy.ReasonPrefixMatch, matched: 800,
		}, {
			name: "peer load makes it wider", request: ask(first, second),
			before: func(r *router.Router, places []string) {
				var others []load.Peer
				for _, id := range places {
					others = append(others, load.Peer{ID: id, QueuedTokens: 40_000})
				}
				r.Load.SetPeers(others)
				busy(t, r, places[0], 20_000+3*800-500)
			},
			why: policy.ReasonPrefixMatch, matched: 800,
		}, {
			name: "the first three are overloaded", request: ask(first, second),
			before: func(r *router.Router, places []string) {
				for _, id := range places[:3] {
					busy(t, r, id, 100_000)
				}
			},
			place: 3, why: policy.ReasonRendezvousSpill,
		}, {
			name: "deeper than the head of the order", request: ask(first, second),
			before: func(r *router.Router, places []string) {
				for _, id := range places[:11] {
					r.Fleet.SetConnected(id, false)
				}
			},
			place: 11, why: policy.ReasonRendezvousSpill,
		}, {
			name: "far down the order", request: ask(first, second),
			before: func(r *router.Router, places []string) {
				r.Fleet.Set(policytest.Bounded(policytest.Fleet(16), 2))
				for i, id := range places {
					if i != 4 && i != 6 {
						busy(t, r, id, 0)
						busy(t, r, id, 0)
					}
				}
				busy(t, r, places[4], 50_000)
				busy(t, r, places[6], 40_000)
			},
			place: 6, why: policy.ReasonRendezvousSpill,
		}, {
			name: "miss to the least loaded", request: ask(tokens(9, 800)),
			config: func(c *Config) { c.OnMiss = OnMissLeastLoaded },
			before: func(r *router.Router, places []string) {
				for i, id := range order(keyOf(t, ask(tokens(9, 800))), r.View().Replicas()) {
					if i != 5 && i != 7 {
						busy(t, r, id, 10)
					}
				}
			},
			place: 5, why: policy.ReasonLeastLoaded,
		}, {
			name: "affinity off while imbalanced", request: ask(first, second),
			config: func(c *Config) { c.ImbalancedThreshold = 2 },
			before: func(r *router.Router, places []string) {
				policytest.Fill(t, r, places[0], 3)
				for _, id := range places[2:] {
					r.Fleet.SetConnected(id, false)
				}
			},
			place: -1, why: policy.ReasonLeastOfTwo,
		}, {
			name: "as balanced as the threshold", request: ask(first, second),
			config: func(c *Config) { c.ImbalancedThreshold = 2 },
			before: func(r *router.Router, places []string) { policytest.Fill(t, r, places[0], 2) },
			why:    policy.ReasonPrefixMatch, matched: 800,
		}, {
			name: "shorter than a block", request: askText("hi"), why: policy.ReasonRendezvous,
		}, {
			name: "no prompt", request: policytest.Session("s"), why: policy.ReasonRendezvous,
		}, {
			name: "no key", request: &policy.Request{}, place: -1, why: policy.ReasonNoKey,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Config{}.WithDefaults()
			if tt.config != nil {
				tt.config(&c)
			}
			r := policytest.NewRouter(t, newPolicy(t, c).policy(), policytest.Fleet(16))
			route(t, r, ask(first))
			if tt.before != nil {
				tt.before(r, order(keyOf(t, ask(first)), r.View().Replicas()))
			}
			d := routertest.Choose(t, r, tt.request)
			require.NotNil(t, d.Replica)
			assert.Equal(t, tt.why, d.Reason)
			assert.Equal(t, tt.place, d.Place)
			assert.Equal(t, tt.matched, d.MatchedTokens)
			if s, ok := tt.request.Prepared.(*prepared); ok && tt.place >= 0 {
				assert.Equal(t, order(s.Key, r.View().Replicas())[tt.place], d.Replica.ID)
			}
		})
	}
}

func TestAllFullWaits(t *testing.T) {
	r := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), policytest.Bounded(policytest.Fleet(3), 1))
	for _, id := range []string{"r0", "r1", "r2"} {
		busy(t, r, id, 1)
	}
	for _, q := range []*policy.Request{ask(tokens(1, 100)), policytest.Session("s"), {}} {
		d := routertest.Choose(t, r, q)
		assert.Nil(t, d.Replica)
		assert.Nil(t, d.WaitFor)
	}
}

// The nearer tier is preferred, whatever its load; the order goes on over the whole fleet after it.
func TestTiers(t *testing.T) {
	fleet := policytest.Fleet(40)
	for i := range fleet {
		fleet[i].Zone = map[bool]string{true: "here", false: "there"}[i%4 == 0]
	}
	r := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), fleet, func(o *router.Options) { o.Zone = "here" })
	for i := range 40 {
		q := ask(tokens(i, 300))
		d := routertest.Choose(t, r, q)
		require.Equal(t, "here", d.Replica.Zone)
		for at, id := range order(q.Prepared.(*prepared).Key, r.View().Replicas()) {
			if rep := r.View().ByID(id); rep.Zone == "here" {
				require.Equal(t, id, d.Replica.ID)
				require.Equal(t, at, d.Place)
				break
			}
		}
	}
}

func TestRetryPrefersUntriedInTheSameOrder(t *testing.T) {
	r := newRouter(t, 16)
	q := ask(tokens(1, 800))
	places := order(keyOf(t, q), r.View().Replicas())
	for i := range 12 {
		d := route(t, r, q)
		assert.Equal(t, places[i], d.Replica.ID)
		router.NextAttempt(q, d.Replica)
	}
}

// A queued request chooses with what was prepared for the fleet of that time.
func TestReplicaThatLeftIsNeverChosen(t *testing.T) {
	for _, n := range []int{4, 30} {
		r := newRouter(t, n)
		route(t, r, ask(tokens(1, 800)))
		q := ask(tokens(1, 900))
		r.Prepare(context.Background(), q)
		fleet := policytest.Fleet(n)
		for len(fleet) > 1 {
			d := r.Policy().Choose(q, r.View())
			require.NotNil(t, d.Replica)
			require.Same(t, r.View().ByID(d.Replica.ID), d.Replica)
			require.Equal(t, order(q.Prepared.(*prepared).Key, r.View().Replicas())[d.Place], d.Replica.ID)
			for i := range fleet {
				if fleet[i].ID == d.Replica.ID {
					fleet = append(fleet[:i:i], fleet[i+1:]...)
					break
				}
			}
			policytest.SetFleet(r, fleet)
		}
	}
}

// A replica that comes back under its id has an empty cache.
func TestReplicaThatComesBackHoldsNothing(t *testing.T) {
	r := newRouter(t, 8)
	id := route(t, r, ask(tokens(1, 800))).Replica.ID
	policytest.SetFleet(r, nil)
	policytest.SetFleet(r, policytest.Fleet(8))
	d := route(t, r, ask(tokens(1, 800)))
	assert.Equal(t, id, d.Replica.ID)
	assert.Equal(t, policy.ReasonRendezvous, d.Reason)
	assert.Zero(t, d.MatchedTokens)
}

// Where requests wait at every replica, a miss delays them all: a holder takes more load than next to an idle
// replica.
func TestQueuesEverywhereKeepPromptsWithTheirHolder(t *testing.T) {
	for queued, stays := range map[int]bool{0: false, 1_000: false, 40_000: true} {
		r := newRouter(t, 4)
		first := policytest.Pick(t, r, ask(tokens(1, 7_200)))
		first.Release()
		home := first.Decision.Replica
		busy(t, r, home.ID, 40_000)
		for _, o := range r.View().Replicas() {
			busy(t, r, o.ID, queued)
		}
		d := routertest.Choose(t, r, ask(tokens(1, 7_200), tokens(2, 800)))
		assert.Equal(t, stays, d.Replica == home, "%d tokens queued at each", queued)
	}
}

// Where a server balances the homes, a prompt goes by the rendezvous order, and not to where this client sent it before,
// unless much more of it is cached there. Calls are counted by their home.
func TestBalancedHomes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		tokens  int // of the prompt, all sent to another replica before
		weights map[string]float64
		busy    int // tokens at the home
		reports bool
		place   int
		counts  [2]uint32 // by this home: calls, spilled
	}{
		{"no server", 800, nil, 0, false, 3, [2]uint32{1, 0}},
		{"balanced", 800, map[string]float64{}, 0, false, 0, [2]uint32{1, 0}},
		{"much is cached elsewhere", 12_000, map[string]float64{}, 0, false, 3, [2]uint32{1, 0}},
		{"the home is overloaded", 800, map[string]float64{}, 100_000, false, 1, [2]uint32{1, 1}},
		{"caches are reported", 800, map[string]float64{}, 0, true, 3, [2]uint32{}},
	} {
		r := newRouter(t, 8)
		prompt := tokens(1, tt.tokens)
		places := order(keyOf(t, ask(prompt)), r.View().Replicas())
		held := policytest.Pick(t, r, &policy.Request{Pin: places[3], Prompt: policy.Prompt{Tokens: prompt}, PromptTokens: tt.tokens})
		held.Release()
		r.Load.SetHomes(tt.weights)
		r.CacheChanged(nil) // reports nothing
		busy(t, r, places[0], tt.busy)
		if tt.reports {
			report(r, places[3], prompt, 16)
		}
		home := r.View().ByID(places[0])
		home.State().TakeHomes()
		d := routertest.Decide(t, r, ask(prompt))
		require.Equal(t, places[tt.place], d.Replica.ID, tt.name)
		calls, spilled := home.State().TakeHomes()
		require.Equal(t, tt.counts, [2]uint32{calls, spilled}, tt.name)
	}
}
