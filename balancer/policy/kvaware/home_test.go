package kvaware

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// end ends a call whose replica reports how many tokens of the prompt it had cached; less than 0 = it reports none.
func end(r *router.Router, q *policy.Request, b *router.Reservation, cached int) {
	b.PrefillDone()
	b.Release()
	usage := policy.NoUsage
	if cached >= 0 {
		usage = policy.Usage{PromptTokens: q.PromptTokens, CachedTokens: cached, OutputTokens: 1}
	}
	r.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: time.Second, Usage: usage})
}

// serve makes a call.
func serve(t testing.TB, r *router.Router, q *policy.Request, cached int) policy.Decision {
	t.Helper()
	b := policytest.Pick(t, r, q)
	end(r, q, b, cached)
	return b.Decision
}

// teach makes calls with prompts of their own, of which the replicas had so many of 1,000 tokens cached.
func teach(t testing.TB, r *router.Router, calls, cached int) {
	t.Helper()
	for i := range calls {
		serve(t, r, ask(tokens(1_000_000+i, 1000)), cached)
	}
}

// A fresh fleet computes whole prompts, and is charged for them, however often prompts begin alike: nothing is expected
// to be cached before an engine has shown that it is, and never if the engines report nothing.
func TestNothingIsExpectedBeforeItIsMeasured(t *testing.T) {
	r := newRouter(t, 8)
	system := tokens(0, 2000)
	for i := range 40 {
		q := ask(system, tokens(1+i, 500))
		b := policytest.Pick(t, r, q)
		require.EqualValues(t, 2500-b.Decision.MatchedTokens, b.Decision.Replica.QueuedTokens(), "call %d", i)
		require.Zero(t, b.Decision.ExpectedTokens)
		end(r, q, b, -1)
	}
}

// What other clients are expected to have sent to a prompt's home is not charged there. Elsewhere all of it is.
func TestExpectedIsNotCharged(t *testing.T) {
	r := newRouter(t, 8)
	teach(t, r, 100, 600)
	q := ask(tokens(1, 8000))
	at := places(t, r, q)
	first, second := r.View().ByID(at[0]), r.View().ByID(at[1])
	b := policytest.Pick(t, r, q)
	require.Equal(t, first, b.Decision.Replica)
	assert.Equal(t, policy.ReasonRendezvous, b.Decision.Reason)
	assert.Zero(t, b.Decision.MatchedTokens)
	assert.InDelta(t, 0.4*8000, first.QueuedTokens(), 100)
	b.Release()
	assert.Zero(t, first.QueuedTokens())
	busy(t, r, at[0], 50_000)
	b = policytest.Pick(t, r, ask(tokens(1, 8000)))
	assert.Equal(t, second, b.Decision.Replica)
	assert.Equal(t, policy.ReasonRendezvousSpill, b.Decision.Reason)
	assert.Equal(t, 1, b.Decision.Place)
	assert.Equal(t, 8000, second.QueuedTokens())
}

// What this client has sent elsewhere counts against what the home is expected to have: the larger part wins.
func TestOwnMatchAgainstTheHome(t *testing.T) {
	for _, tt := range []struct {
		sent int // tokens of the prompt that this client has sent elsewhere
		home bool
		why  policy.Reason
	}{
		{0, true, policy.ReasonRendezvous}, {800, true, policy.ReasonRendezvous},
		{4000, false, policy.ReasonPrefixMatch}, {8000, false, policy.ReasonPrefixMatch},
	} {
		p := newPolicy(t, Config{}.WithDefaults())
		r := policytest.NewRouter(t, p.policy(), policytest.Fleet(8))
		teach(t, r, 200, 300)
		require.InDelta(t, 0.3, p.reuse.Share(), 0.01)
		prompt := tokens(1, 8000)
		at := places(t, r, ask(prompt))
		if tt.sent > 0 {
			own := ask(prompt[:tt.sent])
			own.Pin = at[5]
			serve(t, r, own, -1)
		}
		d := routertest.Choose(t, r, ask(prompt))
		assert.Equal(t, tt.home, d.Replica.ID == at[0], "%d tokens sent elsewhere", tt.sent)
		assert.Equal(t, tt.why, d.Reason, "%d tokens sent elsewhere", tt.sent)
	}
}

// A client is alone after some prompts of which nothing was cached but what it had sent there. Then the least loaded
// replica goes before the home, and a prompt is found again where it went. As soon as something is cached that it did not
// send there, prompts have homes again.
func TestAClientThatIsAlone(t *testing.T) {
	r := newRouter(t, 8)
	away := func(seed int) bool {
		q := ask(tokens(seed, 3000))
		at := places(t, r, q)
		fill := busy(t, r, at[0], 1000)
		defer fill.Release()
		return routertest.Choose(t, r, q).Replica.ID != at[0]
	}
	assert.False(t, away(1), "1,500 tokens of load are less than a near tie")
	teach(t, r, 9, 0)
	assert.True(t, away(2), "alone")
	d := serve(t, r, ask(tokens(3, 3000)), 0)
	assert.Equal(t, policy.ReasonKVNearTie, d.Reason)
	again := serve(t, r, ask(tokens(3, 3000), tokens(4, 500)), 3000)
	assert.Equal(t, d.Replica.ID, again.Replica.ID)
	assert.Equal(t, policy.ReasonPrefixMatch, again.Reason)
	assert.True(t, away(5), "that was its own")
	serve(t, r, ask(tokens(6, 3000)), 2000)
	assert.False(t, away(7), "another client's")

	quiet := newRouter(t, 8)
	teach(t, quiet, 100, -1)
	q := ask(tokens(1, 3000))
	busy(t, quiet, places(t, quiet, q)[0], 1000)
	assert.Equal(t, policy.ReasonRendezvous, routertest.Choose(t, quiet, q).Reason, "engines report nothing")
}

// The engines' tokens need not be those that a client counts: parts are compared, and what a part of a text may be off.
func TestAloneWithOtherTokens(t *testing.T) {
	p := newPolicy(t, Config{}.WithDefaults())
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(4))
	for i := range 40 {
		q := new(policy.Request)
		q.SetPrompt(policy.Prompt{Text: strings.Repeat("system ", 1000) + strings.Repeat(fmt.Sprint("user", i), 1000)})
		b := policytest.Pick(t, r, q)
		b.Release()
		r.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: 1, Usage: policy.Usage{
			PromptTokens: 3 * q.PromptTokens, CachedTokens: 3*(b.Decision.MatchedTokens+b.Decision.MatchedTokens/10) + 100,
		}})
	}
	assert.True(t, p.reuse.Alone())
}

// A request with a session and no prompt goes by the order, whatever is reported and however alone the client is: nobody
// knows where the session was.
func TestSessionsWithoutPromptKeepTheirReplica(t *testing.T) {
	r := newRouter(t, 8)
	teach(t, r, 20, 0)
	for _, rep := range r.View().Replicas()[:4] {
		report(r, rep.ID, 0, 0, tokens(1, 160), 16)
	}
	home := routertest.Choose(t, r, policytest.Session("s")).Replica.ID
	busy(t, r, home, 1000)
	assert.Equal(t, home, routertest.Choose(t, r, policytest.Session("s")).Replica.ID)
}

// Each rank is a place of its own: clients that share nothing agree on the rank, and what they are expected to have
// cached there counts there, and nowhere else on the replica.
func TestHomesAreRanks(t *testing.T) {
	fleet := policytest.Fleet(2)
	for i := range fleet {
		fleet[i].Ranks = 4
	}
	one := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), fleet)
	two := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), fleet)
	teach(t, one, 100, 800)
	teach(t, two, 100, 800)
	used := map[string]int{}
	for i := range 160 {
		d := routertest.Choose(t, one, ask(tokens(i, 8000)))
		other := routertest.Choose(t, two, ask(tokens(i, 8000)))
		require.Equal(t, policy.ReasonRendezvous, d.Reason)
		unit := fmt.Sprintf("%s/%d", d.Replica.ID, d.Rank())
		require.Equal(t, unit, fmt.Sprintf("%s/%d", other.Replica.ID, other.Rank()))
		used[unit]++
	}
	assert.Len(t, used, 8)
	for unit, n := range used {
		assert.InDelta(t, 20, n, 14, unit)
	}
	// A client's own load on a rank moves a prompt to a rank on which nothing is expected.
	for i := 0; ; i++ {
		q := ask(tokens(1000+i, 8000))
		if places(t, one, q)[0] != "r0" || q.Prepared.(*prepared).Key%4 != 0 {
			continue
		}
		for j := range 8 { // a pinned call has no rank, and counts at the first
			pinned := ask(tokens(5000+j, 8000))
			pinned.Pin = "r0"
			policytest.Pick(t, one, pinned)
		}
		d := routertest.Choose(t, one, q)
		assert.NotEqual(t, "r0/0", fmt.Sprintf("%s/%d", d.Replica.ID, d.Rank()))
		assert.Equal(t, policy.ReasonRendezvousSpill, d.Reason)
		assert.Zero(t, d.ExpectedTokens)
		return
	}
}

// A prefix in more than its share of the requests is more than one rank should bear: ranks count as places.
func TestPopularPrefixesSpreadOverRanks(t *testing.T) {
	fleet := policytest.Fleet(1)
	fleet[0].Ranks = 8
	r := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), fleet)
	count := map[int]int{}
	for i := range 400 {
		q := ask(tokens(i, 700))
		if i%3 == 0 {
			q = ask(tokens(2_000_000, 640), tokens(i, 60))
		}
		d := route(t, r, q)
		if i%3 == 0 && i > 100 {
			count[d.Rank()]++
		}
	}
	assert.Len(t, count, 8)
}

// The second in the order is the home of a part of the prompts once the first has long been the busier one, of more
// of them the busier it is. Two clients that see the same agree on them.
func TestTheSecondIsTheHomeIfTheFirstIsLongBusy(t *testing.T) {
	clock := routertest.NewClock()
	moved := func(calls int) (moved []int) {
		r := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), policytest.Fleet(2),
			func(o *router.Options) { o.Now = clock.Now })
		release := policytest.Fill(t, r, "r0", calls)
		for i := range 60 {
			route(t, r, ask(tokens(500+i, 100)))
			clock.Advance(10 * time.Second)
		}
		release(calls) // load of the moment decides nothing from here
		homes := 0
		for i := range 200 {
			q := ask(tokens(1000+i, 200))
			if places(t, r, q)[0] != "r0" {
				continue
			}
			homes++
			if d := routertest.Choose(t, r, q); d.Replica.ID == "r1" {
				assert.Equal(t, policy.ReasonRendezvous, d.Reason)
				moved = append(moved, i)
			}
		}
		require.Greater(t, homes, 50)
		return moved
	}
	assert.Empty(t, moved(0))
	some, most := moved(1), moved(4)
	assert.NotEmpty(t, some)
	assert.Greater(t, len(most), len(some))
	assert.Subset(t, most, some)
	assert.Equal(t, some, moved(1))
}

// Clients that share nothing agree on a large fleet too, of which each looks at some replicas only, while the loads
// differ by less than a near tie.
func TestLargeFleetsAgree(t *testing.T) {
	rnd := routertest.Seeded(9)
	var clients []*router.Router
	for range 2 {
		r := newRouter(t, 200)
		for _, rep := range r.View().Replicas() {
			if n := rnd.IntN(3000); n > 0 {
				busy(t, r, rep.ID, n)
			}
		}
		clients = append(clients, r)
	}
	for i := range 200 {
		d, other := routertest.Choose(t, clients[0], ask(tokens(i, 2000))), routertest.Choose(t, clients[1], ask(tokens(i, 2000)))
		require.Equal(t, d.Replica.ID, other.Replica.ID)
		require.Zero(t, d.Place)
		require.Equal(t, policy.ReasonRendezvous, d.Reason)
	}
}

// A shadow that picks another replica than the policy in force, a query and a preview leave no trace: the policy decides
// as if they had not been made.
func TestWhatIsNotSentLeavesNoTrace(t *testing.T) {
	prompt := func(i int) *policy.Request { return ask(tokens(i%7, 1600), tokens(100+i, 300)) }
	first := policy.Policy{Name: "first", Choose: func(q *policy.Request, v policy.View) policy.Decision {
		return policy.To(v.Connected()[0], "first")
	}}
	shadow := newPolicy(t, Config{}.WithDefaults())
	r := policytest.NewRouter(t, first, policytest.Fleet(8), func(o *router.Options) { o.Shadow = shadow.policy() })
	var together []*policy.Request
	for i := range 60 { // prepared together, so that only noted picks could be found
		q := prompt(i)
		r.Prepare(t.Context(), q)
		together = append(together, q)
	}
	for _, q := range together {
		b := policytest.Pick(t, r, q)
		_, d, _, ok := router.Shadow(q)
		require.True(t, ok)
		if d.Replica.ID != "r0" {
			require.Zero(t, d.MatchedTokens, "nothing was sent there")
		}
		b.Release()
		r.Complete(q, b.Decision, policy.Outcome{Sent: true, Usage: policy.NoUsage})
	}

	plain, asked := newRouter(t, 8), newRouter(t, 8)
	for i := range 200 {
		for range i % 3 {
			q := prompt(1000 + i)
			var b router.Reservation
			require.NoError(t, asked.Reserve(t.Context(), q, &b, router.How{Query: true}))
			b.Release()
		}
		q, other := prompt(i), prompt(i)
		b, c := policytest.Pick(t, plain, q), policytest.Pick(t, asked, other)
		asked.Next(other, c.Decision.Replica, 3, nil)
		for _, d := range []*policy.Decision{&b.Decision, &c.Decision} {
			require.Equal(t, b.Decision.Replica.ID, d.Replica.ID)
			require.Equal(t, b.Decision.Reason, d.Reason)
			require.Equal(t, b.Decision.MatchedTokens, d.MatchedTokens)
			require.Equal(t, b.Decision.Load, d.Load)
		}
		if i%5 > 0 {
			end(plain, q, b, 1600)
			end(asked, other, c, 1600)
		}
	}
}

func TestScaleMovesOneInN(t *testing.T) {
	small, large := newRouter(t, 16), newRouter(t, 17)
	const keys = 4000
	moved := 0
	for i := range keys {
		from, to := policytest.Route(t, small, ask(tokens(i, 40))), policytest.Route(t, large, ask(tokens(i, 40)))
		if from != to {
			moved++
			require.Equal(t, "r16", to, "only the newcomer may take over")
		}
	}
	assert.InDelta(t, keys/17., moved, keys/17.*.35)
}

func TestHomesSpread(t *testing.T) {
	r := newRouter(t, 16)
	count := map[string]int{}
	for i := range 3200 {
		count[policytest.Route(t, r, ask(tokens(i, 40)))]++
	}
	for _, rep := range r.View().Replicas() {
		assert.InDelta(t, 200, count[rep.ID], 70, rep.ID)
	}
}

func TestTenantsDoNotShare(t *testing.T) {
	r := newRouter(t, 16)
	route(t, r, ask(tokens(1, 800)))
	for _, change := range []func(*policy.Request){
		func(q *policy.Request) { q.Model = "m" },
		func(q *policy.Request) { q.Adapter = "a" },
		func(q *policy.Request) { q.CacheSalt = "s" },
	} {
		q := ask(tokens(1, 800))
		change(q)
		d := route(t, r, q)
		assert.Zero(t, d.MatchedTokens)
		assert.NotEqual(t, policy.ReasonPrefixMatch, d.Reason)
	}
	assert.Equal(t, 800, route(t, r, ask(tokens(1, 800))).MatchedTokens)
}
