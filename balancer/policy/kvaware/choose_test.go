package kvaware

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Each case is a fleet of 16 and a prompt of 8,000 tokens; places is its rendezvous order.
func TestCost(t *testing.T) {
	prompt := tokens(1, 8000)
	for _, tt := range []struct {
		name    string
		before  func(r *router.Router, places []string)
		place   int
		why     policy.Reason
		matched int
	}{
		{
			name: "no replica holds it, none is busy", why: policy.ReasonRendezvous,
		}, {
			name:   "a holder saves more than a near tie",
			before: func(r *router.Router, at []string) { report(r, at[7], 0, 0, prompt, 16) },
			place:  7, why: policy.ReasonPrefixMatch, matched: 8000,
		}, {
			name: "a short match decides a near tie",
			before: func(r *router.Router, at []string) {
				report(r, at[7], 0, 0, prompt[:64], 16)
				busy(t, r, at[7], 3*64-500+3999)
			},
			place: 7, why: policy.ReasonPrefixMatch, matched: 64,
		}, {
			name: "and nothing else",
			before: func(r *router.Router, at []string) {
				report(r, at[7], 0, 0, prompt[:64], 16)
				busy(t, r, at[7], 3*64-500+4001)
			},
			why: policy.ReasonRendezvous,
		}, {
			name: "the deepest of two holders",
			before: func(r *router.Router, at []string) {
				report(r, at[7], 0, 0, prompt, 16)
				report(r, at[3], 0, 0, prompt[:7200], 16)
				policytest.Fill(t, r, at[7], 1)
			},
			place: 7, why: policy.ReasonPrefixMatch, matched: 8000,
		}, {
			name: "the less loaded of two that hold equally much",
			before: func(r *router.Router, at []string) {
				report(r, at[7], 0, 0, prompt, 16)
				report(r, at[3], 0, 0, prompt, 16)
				policytest.Fill(t, r, at[3], 1)
			},
			place: 7, why: policy.ReasonPrefixMatch, matched: 8000,
		}, {
			name: "the first of them where peer load drifts",
			before: func(r *router.Router, at []string) {
				report(r, at[7], 0, 0, prompt, 16)
				report(r, at[3], 0, 0, prompt, 16)
				r.Load.SetDrift(0.1)
				r.Load.SetPeers([]load.Peer{{ID: at[3], Ongoing: 1}})
			},
			place: 3, why: policy.ReasonPrefixMatch, matched: 8000,
		}, {
			name: "a holder takes three times the load that it saves, and the width",
			before: func(r *router.Router, at []string) {
				report(r, at[7], 0, 0, prompt, 16)
				busy(t, r, at[7], 3*8000-500-4001)
			},
			place: 7, why: policy.ReasonPrefixMatch, matched: 8000,
		}, {
			name: "and no more",
			before: func(r *router.Router, at []string) {
				report(r, at[7], 0, 0, prompt, 16)
				busy(t, r, at[7], 3*8000-500+4001)
			},
			why: policy.ReasonRendezvous,
		}, {
			name: "load counts among holders, however much they hold",
			before: func(r *router.Router, at []string) {
				for i, id := range at {
					report(r, id, 0, 0, prompt, 16)
					busy(t, r, id, 100_000)
					if i < 9 {
						busy(t, r, id, 5_000)
					}
				}
			},
			place: 9, why: policy.ReasonPrefixMatch, matched: 8000,
		}, {
			name:   "active requests count",
			before: func(r *router.Router, at []string) { policytest.Fill(t, r, at[0], 9) },
			place:  1, why: policy.ReasonRendezvousSpill,
		}, {
			name: "peer load counts",
			before: func(r *router.Router, at []string) {
				r.Load.SetPeers([]load.Peer{{ID: at[0], QueuedTokens: 2000, Ongoing: 5}})
			},
			place: 1, why: policy.ReasonRendezvousSpill,
		}, {
			name: "small differences in it do not",
			before: func(r *router.Router, at []string) {
				r.Load.SetDrift(0.75)
				setLoads(r, at, 40_000)
			},
			why: policy.ReasonRendezvous,
		}, {
			name: "large ones do",
			before: func(r *router.Router, at []string) {
				setLoads(r, at, 10_000)
			},
			place: 1, why: policy.ReasonRendezvousSpill,
		}, {
			name: "faster tiers are worth more",
			before: func(r *router.Router, at []string) {
				report(r, at[2], 0, policy.TierDisk, prompt, 16)
				report(r, at[4], 0, policy.TierHost, prompt, 16)
			},
			place: 4, why: policy.ReasonPrefixMatch, matched: 8000,
		}, {
			name:   "superblocks",
			before: func(r *router.Router, at []string) { report(r, at[7], 0, 0, prompt, policy.SuperblockTokens) },
			place:  7, why: policy.ReasonPrefixMatch, matched: 7680,
		}, {
			name:   "the engine's own block",
			before: func(r *router.Router, at []string) { report(r, at[7], 0, 0, prompt, 128) },
			place:  -2, why: policy.ReasonPrefixMatch, matched: 7936,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPolicy(t, Config{}.WithDefaults())
			r := policytest.NewRouter(t, p.policy(), policytest.Fleet(16))
			at := places(t, r, ask(prompt))
			if tt.before != nil {
				tt.before(r, at)
			}
			d := routertest.Choose(t, r, ask(prompt))
			require.NotNil(t, d.Replica)
			if tt.place == -2 { // another block is another key
				assert.Equal(t, at[7], d.Replica.ID)
			} else {
				assert.Equal(t, at[tt.place], d.Replica.ID)
				assert.Equal(t, tt.place, d.Place)
			}
			assert.Equal(t, tt.why, d.Reason)
			assert.Equal(t, tt.matched, d.MatchedTokens)
			assert.Zero(t, p.caches.Stats().Refused)
		})
	}
}

// setLoads sets the peer load: so many tokens everywhere, and 16,000 more at the first.
func setLoads(r *router.Router, at []string, tokens int64) {
	loads := make([]load.Peer, len(at))
	for i, id := range at {
		loads[i] = load.Peer{ID: id, QueuedTokens: tokens}
	}
	loads[0].QueuedTokens += 16_000
	r.Load.SetPeers(loads)
}

// A replica that is twice as fast takes twice the load.
func TestRates(t *testing.T) {
	fleet := policytest.Fleet(2)
	fleet[1].Weight = 2
	r := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), fleet)
	count := map[string]int{}
	for i := range 300 {
		count[policytest.Pick(t, r, ask(tokens(i, 1000))).Decision.Replica.ID]++
	}
	assert.InDelta(t, 200, count["r1"], 3)
}

func TestWithoutPrompt(t *testing.T) {
	r := newRouter(t, 16)
	d := routertest.Choose(t, r, policytest.Session("s"))
	home := d.Replica.ID
	assert.Equal(t, policy.ReasonRendezvous, d.Reason)
	assert.Zero(t, d.Place)
	assert.Equal(t, home, routertest.Choose(t, newRouter(t, 16), policytest.Session("s")).Replica.ID)
	busy(t, r, home, 5000)
	d = routertest.Choose(t, r, policytest.Session("s"))
	assert.NotEqual(t, home, d.Replica.ID)
	assert.Equal(t, policy.ReasonRendezvousSpill, d.Reason)
	assert.Equal(t, policy.ReasonNoKey, routertest.Choose(t, r, &policy.Request{}).Reason)
}

func TestRanks(t *testing.T) {
	fleet := policytest.Fleet(3)
	for i := range fleet {
		fleet[i].Ranks = 4
	}
	r := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), fleet)
	prompt := tokens(1, 8000)
	report(r, "r2", 3, 0, prompt, 16)
	d := routertest.Choose(t, r, ask(prompt))
	assert.Equal(t, "r2/3", fmt.Sprintf("%s/%d", d.Replica.ID, d.Rank()))
	assert.Equal(t, 8000, d.MatchedTokens)

	// Different prompts spread over all ranks, and the client's own routes are stored by rank.
	count := map[string]int{}
	for i := range 120 {
		q := ask(tokens(10+i, 8000))
		b := policytest.Pick(t, r, q)
		unit := fmt.Sprintf("%s/%d", b.Decision.Replica.ID, b.Decision.Rank())
		count[unit]++
		again := routertest.Choose(t, r, ask(tokens(10+i, 8000)))
		require.Equal(t, unit, fmt.Sprintf("%s/%d", again.Replica.ID, again.Rank()))
	}
	assert.Len(t, count, 12)
	for unit, n := range count {
		assert.InDelta(t, 10, n, 3, unit)
	}
}

// Where requests wait at every replica, a miss delays them all: a holder takes more load than next to an idle
// replica.
func TestQueuesEverywhereKeepPromptsWithTheirHolder(t *testing.T) {
	for queued, stays := range map[int]bool{0: false, 1_000: false, 40_000: true} {
		r := newRouter(t, 4)
		prompt := ask(tokens(1, 7_200), tokens(2, 800))
		report(r, "r2", 0, 0, tokens(1, 7_200), 16)
		busy(t, r, "r2", 40_000)
		for _, o := range r.View().Replicas() {
			busy(t, r, o.ID, queued)
		}
		assert.Equal(t, stays, routertest.Choose(t, r, prompt).Replica.ID == "r2", "%d tokens queued at each", queued)
	}
}
