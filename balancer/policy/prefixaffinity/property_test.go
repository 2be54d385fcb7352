package prefixaffinity

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/lab/race"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

func TestConform(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rendezvous":   func(*Config) {},
		"least_loaded": func(c *Config) { c.OnMiss = OnMissLeastLoaded },
		"smallest":     func(c *Config) { c.OnMiss = OnMissSmallest },
		"imbalanced":   func(c *Config) { c.ImbalancedThreshold = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			policytest.Conform(t, func() policy.Policy { return newPolicy(t, with(change)).policy() })
		})
	}
}

// Clients that share nothing and have seen no request send the same prompt to the same replica.
func TestNewClientsAgree(t *testing.T) {
	for i := range 20 {
		want := ""
		for range 8 {
			id := route(t, newRouter(t, 16), ask(tokens(i, 500))).Replica.ID
			if want == "" {
				want = id
			}
			require.Equal(t, want, id)
		}
	}
}

// Clients that have seen different conversations with the same system prompt agree on the replica of a new one,
// and every turn of it finds its replica from any client. Conversations spread over the fleet.
func TestTurnsFindTheirReplicaFromAnyClient(t *testing.T) {
	const clients, replicas = 8, 16
	system := tokens(0, 2000)
	fleets := make([]*router.Router, clients)
	for c := range fleets {
		fleets[c] = newRouter(t, replicas)
		for i := range 100 {
			route(t, fleets[c], ask(system, tokens(1000+100*c+i, 150)))
		}
	}
	rnd := routertest.Seeded(3)
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
	assert.GreaterOrEqual(t, found, turns*98/100)
	assert.Len(t, used, replicas)
}

// The system prompt alone is never a match once enough requests have it; a real conversation is, however long the
// system prompt before it.
func TestWhatCounts(t *testing.T) {
	r := newRouter(t, 16)
	system := tokens(0, 20_000)
	for i := range 200 {
		d := route(t, r, ask(system, tokens(100+i, 100)))
		if i > rendezvous.Few {
			require.NotEqual(t, policy.ReasonPrefixMatch, d.Reason, "request %d", i)
		}
		next := route(t, r, ask(system, tokens(100+i, 100), tokens(1000+i, 100)))
		require.Equal(t, policy.ReasonPrefixMatch, next.Reason)
		require.GreaterOrEqual(t, next.MatchedTokens, 20_096-16, "shared blocks are cached too")
		if i > rendezvous.Few {
			require.Equal(t, d.Replica.ID, next.Replica.ID)
		}
	}
}

// A client with one endless conversation.
func TestOneConversation(t *testing.T) {
	r := newRouter(t, 16)
	conversation := tokens(0, 500)
	home := route(t, r, ask(conversation)).Replica.ID
	for i := range 300 {
		conversation = append(conversation, tokens(1+i, 40)...)
		d := route(t, r, ask(conversation))
		require.Equal(t, policy.ReasonPrefixMatch, d.Reason, "turn %d", i)
		require.Equal(t, home, d.Replica.ID)
	}
}

// The same prompt several times, with and without tokens after the last full block.
func TestTheSamePromptStays(t *testing.T) {
	for _, n := range []int{5, 800, 807} {
		r := newRouter(t, 16)
		home := route(t, r, ask(tokens(1, n))).Replica.ID
		for range 500 {
			d := route(t, r, ask(tokens(1, n)))
			require.Equal(t, home, d.Replica.ID)
			require.Equal(t, n, d.MatchedTokens)
		}
	}
}

// Short questions after a long instruction do not all go to one replica.
func TestShortQuestionsSpread(t *testing.T) {
	r := newRouter(t, 16)
	system := tokens(0, 1024)
	count := map[string]int{}
	for i := range 400 {
		count[route(t, r, ask(system, tokens(1+i, 7))).Replica.ID]++
	}
	for id, n := range count {
		assert.Less(t, n, 60, id)
	}
	assert.Len(t, count, 16)
}

// A burst of identical requests: each sees the reservations of those before, and they
// fan out along the rendezvous order.
func TestHotPrefixFansOutAndComesBack(t *testing.T) {
	r := newRouter(t, 16)
	hot := func() *policy.Request { return ask(tokens(1, 3000)) }
	for range 40 { // until the key is stable
		route(t, r, hot())
	}
	var held []*router.Reservation
	used := func() map[string]int {
		m := map[string]int{}
		for _, b := range held {
			m[b.Decision.Replica.ID]++
		}
		return m
	}
	widest := 0
	for i := range 100 {
		q := hot()
		before := r.View().Load(r.View().LeastLoaded(q))
		b := policytest.Pick(t, r, q)
		b.PrefillDone()
		held = append(held, b)
		require.LessOrEqual(t, b.Decision.Load, before+4_500, "a replica is within the bound")
		now := len(used())
		require.GreaterOrEqual(t, now, widest)
		widest = now
		if i < 8 {
			require.Equal(t, 1, widest, "one replica can bear 8")
		}
		require.GreaterOrEqual(t, widest, i/10, "in step with the load")
		require.LessOrEqual(t, widest, 2+i/8, "in step with the load")
	}
	holders := used()
	for _, b := range held {
		b.Release()
	}
	held = nil
	home := route(t, r, hot()).Replica.ID
	for range 20 {
		assert.Equal(t, home, route(t, r, hot()).Replica.ID)
	}
	q := hot()
	r.Prepare(t.Context(), q)
	for _, id := range order(q.Prepared.(*prepared).Key, r.View().Replicas()) {
		if holders[id] > 0 {
			assert.Equal(t, id, home, "the first of those that hold it")
			break
		}
	}
}

// Requests prepared together, before any is routed, still see each other.
func TestBurstPreparedTogether(t *testing.T) {
	r := newRouter(t, 8)
	var qs []*policy.Request
	for range 40 {
		q := ask(tokens(1, 4000))
		r.Prepare(context.Background(), q)
		qs = append(qs, q)
	}
	count := map[string]int{}
	for _, q := range qs {
		count[policytest.Pick(t, r, q).Decision.Replica.ID]++
	}
	for id, n := range count {
		assert.LessOrEqual(t, n, 10, id)
	}
	assert.GreaterOrEqual(t, len(count), 4)
}

func TestTheBoundIsKept(t *testing.T) {
	rnd := routertest.Seeded(9)
	for range 300 {
		n := 2 + rnd.IntN(30)
		r := newRouter(t, n)
		for range rnd.IntN(60) {
			policytest.Pick(t, r, &policy.Request{Pin: r.View().Replicas()[rnd.IntN(n)].ID, PromptTokens: rnd.IntN(20_000)})
		}
		var mean float64
		for _, rep := range r.View().Replicas() {
			mean += r.View().Load(rep) / float64(n)
		}
		d := routertest.Choose(t, r, ask(tokens(rnd.IntN(5), 600)))
		require.LessOrEqual(t, r.View().Load(d.Replica), max(1.5*mean, mean+8000))
	}
}

func TestAllocations(t *testing.T) {
	p := newPolicy(t, Config{}.WithDefaults())
	for _, n := range []int{8, 16, 100} {
		r := policytest.NewRouter(t, p.policy(), policytest.Fleet(n))
		long := tokens(1, 8192)
		for _, rep := range r.View().Replicas()[:8] {
			q := ask(long)
			r.Prepare(context.Background(), q)
			p.routed(q, policy.To(rep, ""))
		}
		for _, tt := range []struct {
			name   string
			prompt policy.Prompt
			most   float64
		}{
			{"8,192 tokens", policy.Prompt{Tokens: long}, 2},
			{"128 bytes", policy.Prompt{Text: string(make([]byte, 128))}, 1},
			{"32 KiB", policy.Prompt{Text: string(make([]byte, 32<<10))}, 2},
		} {
			var q policy.Request
			v := r.View()
			got := testing.AllocsPerRun(50, func() {
				q = policy.Request{}
				q.SetPrompt(tt.prompt)
				if err := p.prepare(context.Background(), &q, v); err != nil {
					t.Fatal(err)
				}
				d := p.choose(&q, v)
				p.routed(&q, d)
				p.completed(&q, d, policy.Outcome{Sent: true})
			})
			assert.LessOrEqual(t, got, tt.most+race.Of(0.0, 50), "%s, %d replicas", tt.name, n)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	for _, on := range []string{OnMissRendezvous, OnMissSmallest} {
		p := newPolicy(t, with(func(c *Config) { c.OnMiss, c.IndexBytes = on, 1<<20 }))
		r := policytest.NewRouter(t, p.policy(), policytest.Bounded(policytest.Fleet(20), 4))
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(w), 1))
				for range 150 {
					q := ask(tokens(0, 200), tokens(rnd.IntN(50), 400))
					var b router.Reservation
					for range 2 {
						if err := r.Reserve(t.Context(), q, &b, router.How{NoWait: true}); err != nil {
							continue
						}
						b.Release()
						router.DropPrompt(q)
						router.NextAttempt(q, b.Decision.Replica)
					}
					p.caches.Stats()
				}
			})
		}
		wg.Go(func() {
			for i := range 60 {
				policytest.SetFleet(r, policytest.Bounded(policytest.Fleet(10+i%11), 4))
			}
		})
		wg.Wait()
	}
}
