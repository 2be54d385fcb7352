package kvaware

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/race"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

func TestConform(t *testing.T) {
	policytest.Conform(t, func() policy.Policy { return newPolicy(t, Config{}.WithDefaults()).policy() })
}

// A thousand requests that were prepared together, before any pick, spread like a thousand one by one; also if
// they pick at the same time.
func TestBurstSpreadsAsOneByOne(t *testing.T) {
	const requests = 1000
	prompt := tokens(1, 4000)
	spread := func(pick func(r *router.Router, q []*policy.Request) []*router.Reservation) []int {
		r := newRouter(t, 16)
		for range 5 { // the key has settled
			route(t, r, ask(prompt))
		}
		policytest.SetFleet(r, nil)
		policytest.SetFleet(r, policytest.Fleet(16)) // and all state is cleared
		qs := make([]*policy.Request, requests)
		for i := range qs {
			qs[i] = ask(prompt)
		}
		count := make([]int, 16)
		for _, b := range pick(r, qs) {
			count[b.Decision.Replica.Index()]++
		}
		return count
	}
	inARow := spread(func(r *router.Router, qs []*policy.Request) (bs []*router.Reservation) {
		for _, q := range qs {
			bs = append(bs, policytest.Pick(t, r, q))
		}
		return bs
	})
	together := spread(func(r *router.Router, qs []*policy.Request) (bs []*router.Reservation) {
		for _, q := range qs {
			r.Prepare(context.Background(), q)
		}
		for _, q := range qs {
			bs = append(bs, policytest.Pick(t, r, q))
		}
		return bs
	})
	atOnce := spread(func(r *router.Router, qs []*policy.Request) []*router.Reservation {
		bs := make([]*router.Reservation, len(qs))
		var wg sync.WaitGroup
		for i, q := range qs {
			wg.Go(func() { bs[i] = policytest.Pick(t, r, q) })
		}
		wg.Wait()
		return bs
	})
	t.Log(inARow)
	for i, n := range inARow {
		assert.InDelta(t, requests/16, n, 30)
		assert.InDelta(t, n, together[i], 1)
		assert.InDelta(t, n, atOnce[i], 1)
	}
}

// Requests that differ only in their ends go to the replicas of the burst as well.
func TestSiblingsOfABurst(t *testing.T) {
	r := newRouter(t, 16)
	for i := range 16 * 10 { // eight in so many are too few to be shared
		policytest.Pick(t, r, ask(tokens(100+i, 64))).Release()
	}
	var qs []*policy.Request
	for i := range 8 {
		q := ask(tokens(1, 8200), tokens(2+i, 60))
		r.Prepare(context.Background(), q)
		qs = append(qs, q)
	}
	home := policytest.Pick(t, r, qs[0]).Decision.Replica.ID
	for _, q := range qs[1:] {
		d := policytest.Pick(t, r, q).Decision
		assert.Equal(t, home, d.Replica.ID)
		assert.Equal(t, 8192, d.MatchedTokens)
	}
}

// A pick that is routed or withdrawn is no longer waited for, in whatever order, and one that is withdrawn leaves
// no state.
func TestRecentPicks(t *testing.T) {
	var picks recent
	rep := new(policy.Replica)
	request := func(since uint64, hashes ...uint64) *prepared {
		s := &prepared{since: since}
		s.Blocks = rendezvous.Blocks{Hashes: hashes, Size: 16, Length: 16 * len(hashes), Unit: 1, Tokens: 16 * len(hashes)}
		return s
	}
	var made []*prepared
	for i := range 40 {
		made = append(made, request(0, 1, 2, 3))
		picks.add(made[i], rep, 0)
	}
	assert.Equal(t, 48, picks.held(request(0, 1, 2, 3), rep, 0))
	assert.Equal(t, 32, picks.held(request(0, 1, 2, 4), rep, 0))
	assert.Zero(t, picks.held(request(0, 9), rep, 0))
	assert.Zero(t, picks.held(request(0, 1, 2, 3), rep, 1), "another rank")
	assert.Zero(t, picks.held(request(40, 1, 2, 3), rep, 0), "no pick since")
	for i, s := range made {
		if i%3 == 0 {
			picks.remove(s)
		}
		picks.routed(s.number)
	}
	picks.remove(made[39])
	assert.Zero(t, picks.held(request(38, 1, 2, 3), rep, 0))
}

func TestMarks(t *testing.T) {
	for n, want := range map[int][]int{0: nil, 1: {1}, 5: {5, 4}, 24: {24, 22, 20, 18, 16}, 379: {379, 352, 320, 288, 256}} {
		assert.Equal(t, want, slices.Collect(marks(n)))
	}
}

// In a large fleet only some replicas are examined. The cost of the pick is close to the least of all.
func TestLargeFleetsAreServedNearlyAsWell(t *testing.T) {
	rnd := routertest.Seeded(5)
	const replicas, tries = 400, 300
	near, excess := 0, 0.0
	for range tries / 10 {
		p := newPolicy(t, Config{}.WithDefaults())
		r := policytest.NewRouter(t, p.policy(), policytest.Fleet(replicas))
		all := r.View().Replicas()
		for _, rep := range all {
			busy(t, r, rep.ID, rnd.IntN(20_000))
		}
		talks := make([][]uint32, 10)
		for i := range talks {
			talks[i] = tokens(i, 6000)
			for range rnd.IntN(40) {
				report(r, all[rnd.IntN(replicas)].ID, 0, 0, talks[i][:16*(1+rnd.IntN(375))], 16)
			}
		}
		for _, conversation := range talks {
			q := ask(conversation)
			d := routertest.Choose(t, r, q)
			s := q.Prepared.(*prepared)
			var found cacheview.Found
			p.caches.Match(s.fleet, &s.Blocks, &found)
			idlest, saves := all[0], 0.
			for _, rep := range all {
				credit, _ := credit(s, &found, rep.Index())
				if saves = max(saves, credit); r.View().Load(rep) < r.View().Load(idlest) {
					idlest = rep
				}
			}
			waiting := max(cacheview.Queue(idlest)/max(float64(q.PromptTokens)-saves, policy.RequestCost)-1, 0)
			cost := func(rep *policy.Replica) float64 {
				credit, _ := credit(s, &found, rep.Index())
				return 3*(float64(q.PromptTokens)-credit) + r.View().Load(rep) - waiting*credit
			}
			least := cost(all[0])
			for _, rep := range all {
				least = min(least, cost(rep))
			}
			over := max(cost(d.Replica)-least-nearTie, 0)
			if over == 0 {
				near++
			}
			excess += over
		}
	}
	t.Logf("%d of %d within the width of the least; the others cost %.0f tokens more in the mean", near, tries, excess/float64(max(tries-near, 1)))
	assert.GreaterOrEqual(t, near, tries*99/100)
	assert.Less(t, excess/tries, 40.)
}

// Clients that share nothing, without reports, send the turns of a conversation to one replica.
func TestTurnsFindTheirReplicaFromAnyClient(t *testing.T) {
	const clients = 8
	rnd := routertest.Seeded(3)
	system := tokens(0, 1000)
	var fleets [clients]*router.Router
	for c := range fleets {
		fleets[c] = newRouter(t, 16)
		for i := range 50 {
			route(t, fleets[c], ask(system, tokens(1000+100*c+i, 150)))
		}
	}
	used := map[string]bool{}
	turns, found := 0, 0
	for i := range 100 {
		var conversation []uint32
		home := ""
		for turn := range 5 {
			conversation = append(conversation, tokens(10_000+10*i+turn, 60+rnd.IntN(200))...)
			id := route(t, fleets[rnd.IntN(clients)], ask(system, conversation)).Replica.ID
			if home == "" {
				home = id
			}
			if turns++; id == home {
				found++
			}
			used[id] = true
		}
	}
	assert.GreaterOrEqual(t, found, turns*95/100)
	assert.Len(t, used, 16)
}

func TestAllocations(t *testing.T) {
	for n, most := range map[int]float64{8: 2, 16: 2, 64: 3, 200: 3} {
		p := newPolicy(t, Config{}.WithDefaults())
		r := policytest.NewRouter(t, p.policy(), policytest.Fleet(n))
		prompt := tokens(1, 8192)
		for _, rep := range r.View().Replicas()[:8] {
			report(r, rep.ID, 0, 0, prompt, 16)
			report(r, rep.ID, 0, 0, prompt, policy.SuperblockTokens)
		}
		v := r.View()
		for i := range 64 { // a new client keeps its first prompts
			r.Prepare(context.Background(), ask(tokens(i, 512)))
		}
		var q policy.Request
		got := testing.AllocsPerRun(200, func() {
			q = policy.Request{}
			q.SetPrompt(policy.Prompt{Tokens: prompt})
			if err := p.prepare(context.Background(), &q, v); err != nil {
				t.Fatal(err)
			}
			d := p.choose(&q, v)
			p.routed(&q, d)
			p.completed(&q, d, policy.Outcome{Sent: true, Usage: policy.NoUsage})
		})
		assert.LessOrEqual(t, got, most+race.Of(0.0, 50), "%d replicas", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	p := newPolicy(t, with(func(c *Config) { c.IndexBytes = 1 << 20 }))
	members := policytest.Bounded(policytest.Fleet(20), 4)
	for i := range members {
		members[i].Ranks = i % 3
	}
	r := policytest.NewRouter(t, p.policy(), members)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 150 {
				q := ask(tokens(0, 200), tokens(rnd.IntN(50), 400))
				var b router.Reservation
				for range 2 {
					if err := r.Reserve(t.Context(), q, &b, router.How{NoWait: true}); err != nil {
						continue
					}
					b.Release()
					r.Complete(q, b.Decision, policy.Outcome{Sent: true, Usage: policy.Usage{CachedTokens: rnd.IntN(600)}})
					router.NextAttempt(q, b.Decision.Replica)
				}
				report(r, members[w].ID, i%2, 0, tokens(0, 600), []int{16, 512}[i%2])
				r.Fleet.SetCapacity(members[w].ID, 1000+i)
				p.caches.Stats()
			}
		})
	}
	wg.Go(func() {
		for i := range 60 {
			policytest.SetFleet(r, members[:10+i%11])
		}
	})
	wg.Wait()
}
