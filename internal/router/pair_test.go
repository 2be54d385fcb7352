package router

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

func role(name string) func(*Member)  { return func(m *Member) { m.Role = name } }
func label(name string) func(*Member) { return func(m *Member) { m.Pair = name } }

var prefills, decodes = role(policy.RolePrefill), role(policy.RoleDecode)

// split is a Router whose policy is also that of prefill legs.
func split(t testing.TB, o Options, ms ...Member) *Router {
	t.Helper()
	if o.Policy.Choose == nil {
		o.Policy = loading(leastLoaded)
	}
	p := o.Policy
	o.Prefill = func() (policy.Policy, error) { return p, nil }
	return connected(t, o, ms...)
}

// ask returns a request with so many prompt tokens.
func ask(tokens int) *policy.Request { return &policy.Request{PromptTokens: tokens} }

// legsAt reserves, and returns the replicas of both legs.
func legsAt(t testing.TB, r *Router, q *policy.Request) (prefill, decode string, pre, b *Reservation) {
	t.Helper()
	pre, b = new(Reservation), new(Reservation)
	require.NoError(t, r.Reserve(t.Context(), q, b, How{NoWait: true, Legs: &Legs{Prefill: pre}}))
	if pre.Decision.Replica != nil {
		prefill = pre.Decision.Replica.ID
	}
	return prefill, b.Decision.Replica.ID, pre, b
}

// idle fails the test if anything is reserved.
func idle(t testing.TB, r *Router) {
	t.Helper()
	for _, rep := range r.View().Replicas() {
		require.Zero(t, part.OfReplica(rep).Book.Load(), rep.ID)
	}
}

// decoding has every replica that serves whole requests decode n of them, which makes a prefill there expensive.
func decoding(t testing.TB, r *Router, n int) {
	t.Helper()
	for _, rep := range r.View().Replicas() {
		for range n {
			if rep.Role != policy.RolePrefill {
				pick(t, r, &policy.Request{Pin: rep.ID})
			}
		}
	}
}

func TestBothLegsAreReserved(t *testing.T) {
	r := split(t, Options{}, member("p", prefills), member("d", decodes))
	decoding(t, r, 20)
	q := ask(10_000)
	p, d, pre, b := legsAt(t, r, q)
	require.Equal(t, []string{"p", "d"}, []string{p, d})
	require.Equal(t, policy.ReasonLeastLoaded, pre.Decision.Reason)
	require.Equal(t, policy.ReasonDecode, b.Decision.Reason)
	at := func(id string) *policy.Replica { return r.View().ByID(id) }
	require.Equal(t, []int{1, 10_000}, []int{at("p").Ongoing(), at("p").QueuedTokens()})
	require.Equal(t, []int{21, 0}, []int{at("d").Ongoing(), at("d").QueuedTokens()})
	require.ErrorIs(t, r.Reserve(t.Context(), q, new(Reservation), How{NoWait: true, Legs: &Legs{Prefill: pre}}), ErrHeld)
	require.Equal(t, 21, at("d").Ongoing())

	pre.PrefillDone()
	require.Equal(t, []int{1, 0}, []int{at("p").Ongoing(), at("p").QueuedTokens()})
	pre.Release()
	require.Zero(t, at("p").Ongoing())
	b.Release()
	require.Equal(t, 20, at("d").Ongoing())
}

// Where the request costs less whole it is served whole.
func TestWholeWhereThatCostsLess(t *testing.T) {
	r := split(t, Options{}, member("p", prefills), member("d", decodes))
	p, d, pre, b := legsAt(t, r, ask(10_000)) // no decode on the replica is delayed
	require.Equal(t, []string{"", "d"}, []string{p, d})
	require.Nil(t, pre.Decision.Replica)
	b.Release()
	pre.Release() // which holds nothing
	idle(t, r)

	decoding(t, r, 20)
	p, _, _, _ = legsAt(t, r, ask(10_000))
	require.Equal(t, "p", p)
	for range 200 { // until the queue of the prefill replica costs more than the delayed decodes
		if p, _, _, _ = legsAt(t, r, ask(10_000)); p == "" {
			return
		}
	}
	require.Fail(t, "always split")
}

// holding is a policy that finds so many tokens of every prompt cached on a replica, and goes where it finds most.
func holding(tokens map[string]int) policy.Policy {
	return loading(func(q *policy.Request, v policy.View) (d policy.Decision) {
		for _, rep := range v.Connected() {
			if v.Available(q, rep) && (d.Replica == nil || tokens[rep.ID] > d.MatchedTokens) {
				d.Replica, d.MatchedTokens = rep, tokens[rep.ID]
			}
		}
		return d
	})
}

// A conversation that a decode replica holds stays whole unless two legs pay for what the prefill replica lacks of it
// twice. Split, it is decoded there.
func TestConversationStaysWhereItIsDecoded(t *testing.T) {
	r := split(t, Options{Policy: holding(map[string]int{"d": 6400})},
		member("p", prefills), member("c", decodes), member("d", decodes), member("e", decodes))
	turn := func() (prefill, decode string) {
		p, d, pre, b := legsAt(t, r, ask(9400))
		b.Release()
		pre.Release()
		return p, d
	}
	decoding(t, r, 3) // two legs would compute 9,400 tokens, and d 3,000 for itself and three others
	p, d := turn()
	require.Equal(t, []string{"", "d"}, []string{p, d})

	decoding(t, r, 17)
	p, d = turn()
	require.Equal(t, []string{"p", "d"}, []string{p, d})

	pick(t, r, &policy.Request{Pin: "d"})
	p, d = turn()
	require.Equal(t, []string{"p", "d"}, []string{p, d}, "it is a little busier")
	for range 100 {
		pick(t, r, &policy.Request{Pin: "d"})
	}
	p, d = turn()
	require.Equal(t, "p", p)
	require.Contains(t, []string{"c", "e"}, d, "it is much busier")
	require.Equal(t, 20, r.View().ByID("e").Ongoing())
}

func TestWholeRequestsSkipPrefillReplicas(t *testing.T) {
	for name, p := range map[string]policy.Policy{
		"least loaded": loading(leastLoaded), "least of two": choosing(leastOfTwo),
		"first": choosing(firstFree),
	} {
		t.Run(name, func(t *testing.T) {
			r := split(t, Options{Policy: p}, member("p0", prefills), member("p1", prefills), member("d", decodes), member("b"))
			for range 50 {
				require.Contains(t, []string{"d", "b"}, pick(t, r, new(policy.Request)).Decision.Replica.ID)
			}
			require.Equal(t, "p0", pick(t, r, &policy.Request{Pin: "p0"}).Decision.Replica.ID, "except for a request that is pinned to it")
		})
	}
}

// A fleet in which no replica serves whole requests counts as not connected.
func TestPrefillReplicasAlone(t *testing.T) {
	r := split(t, Options{}, member("p", prefills))
	require.ErrorIs(t, r.Reserve(t.Context(), ask(10), new(Reservation), How{Legs: &Legs{Prefill: new(Reservation)}}), ErrNotConnected)
	idle(t, r)
}

func TestWhichReplicasPair(t *testing.T) {
	for _, c := range []struct {
		name  string
		fleet []Member
		q     policy.Request
		lost  string // not connected
		p, d  string
	}{
		{
			name: "labels", fleet: []Member{
				member("p7", prefills, label("r7")), member("d8", decodes, label("r8")), member("d7", decodes, label("r7")),
			},
			p: "p7", d: "d7",
		},
		{
			name: "no label in common", fleet: []Member{member("p7", prefills, label("r7")), member("d8", decodes, label("r8"))},
			d: "d8",
		},
		{name: "the other revision prefills where its own has no decode replica", fleet: []Member{
			member("p7", prefills, label("r7")), member("p8", prefills, label("r8")), member("d8", decodes, label("r8")),
		}, p: "p8", d: "d8"},
		{
			name: "one that does both serves whole what it prefills", fleet: []Member{member("b"), member("d", decodes)},
			d: "b",
		},
		{name: "not with itself", fleet: []Member{member("b"), member("p", prefills, draining)}, d: "b"},
		{name: "no roles", fleet: []Member{member("a"), member("b")}, d: "a"},
		{
			name: "excluded prefill", fleet: []Member{member("p", prefills), member("d", decodes)},
			q: policy.Request{Exclude: []string{"p"}}, d: "d",
		},
		{
			name: "excluded decode", fleet: []Member{member("p", prefills), member("d", decodes), member("e", decodes)},
			q: policy.Request{Exclude: []string{"d"}}, p: "p", d: "e",
		},
		{
			name: "allowed", fleet: []Member{member("p", prefills), member("d", decodes), member("e", decodes)},
			q: policy.Request{Allow: []string{"e"}}, d: "e",
		},
		{
			name: "pinned", fleet: []Member{member("p", prefills), member("d", decodes), member("e", decodes)},
			q: policy.Request{Pin: "e"}, d: "e",
		},
		{name: "model", fleet: []Member{
			member("p", prefills, models("m")), member("q", prefills, models("n")),
			member("d", decodes, models("m")), member("e", decodes, models("n")),
		}, q: policy.Request{Model: "n"}, p: "q", d: "e"},
		{name: "draining prefill", fleet: []Member{member("p", prefills, draining), member("d", decodes)}, d: "d"},
		{
			name:  "draining decode",
			fleet: []Member{member("p", prefills), member("d", decodes, draining), member("e", decodes)},
			p:     "p", d: "e",
		},
		{
			name: "prefill without a bound", fleet: []Member{member("p", prefills, room(0)), member("d", decodes)},
			p: "p", d: "d",
		},
		{name: "prefill not connected", fleet: []Member{member("p", prefills), member("d", decodes)}, lost: "p", d: "d"},
		{
			name: "decode not connected", fleet: []Member{member("p", prefills), member("d", decodes), member("e", decodes)},
			lost: "d", p: "p", d: "e",
		},
		{
			name: "near", fleet: []Member{member("p", prefills), member("d", decodes), member("e", decodes, at("n", ""))},
			p: "p", d: "e",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := split(t, Options{Node: "n"}, c.fleet...)
			for _, rep := range r.View().Replicas() {
				if rep.Role != policy.RolePrefill && !rep.Draining {
					for range 30 {
						pick(t, r, &policy.Request{Pin: rep.ID})
					}
				}
			}
			r.Fleet.SetConnected(c.lost, false)
			q := c.q
			q.PromptTokens = 20_000
			p, d, pre, b := legsAt(t, r, &q)
			require.Equal(t, []string{c.p, c.d}, []string{p, d})
			pre.Release()
			b.Release()
		})
	}
}

// A prefill leg needs room. In a full fleet the request waits for a replica that serves it.
func TestLegsWait(t *testing.T) {
	r := split(t, Options{}, member("p", prefills, room(1)), member("d", decodes, room(30)))
	decoding(t, r, 28)
	p, d, pre, b := legsAt(t, r, ask(20_000))
	require.Equal(t, []string{"p", "d"}, []string{p, d})
	p, d, _, whole := legsAt(t, r, ask(20_000))
	require.Equal(t, []string{"", "d"}, []string{p, d}, "the replica that prefills is full")

	waits, ticket := new(Reservation), new(Ticket)
	next := new(Reservation)
	require.ErrorIs(t, r.Reserve(t.Context(), ask(20_000), waits, How{Ticket: ticket, Legs: &Legs{Prefill: next}}), ErrQueued)
	pre.Release()
	require.Equal(t, 1, r.Queued())
	require.Nil(t, next.Decision.Replica, "neither leg is reserved without the other")
	require.Zero(t, r.View().ByID("p").Ongoing())
	whole.Release()
	require.NoError(t, ticket.Take())
	require.Equal(t, []string{"p", "d"}, []string{next.Decision.Replica.ID, waits.Decision.Replica.ID})
	require.Equal(t, policy.ReasonQueued, waits.Decision.Reason)
	for _, held := range []*Reservation{b, next, waits} {
		held.Release()
	}
	require.Zero(t, r.View().ByID("p").Ongoing())
}

// A request that leaves the queue just as it is served holds neither leg.
func TestGivingUpGivesBackBothLegs(t *testing.T) {
	r := split(t, Options{}, member("p", prefills), member("d", decodes, room(30)))
	decoding(t, r, 29)
	last := pick(t, r, new(policy.Request))
	ticket, pre := new(Ticket), new(Reservation)
	require.ErrorIs(t, r.Reserve(t.Context(), ask(20_000), new(Reservation), How{Ticket: ticket, Legs: &Legs{Prefill: pre}}), ErrQueued)
	last.Release()
	require.Equal(t, 1, r.View().ByID("p").Ongoing())
	require.Error(t, ticket.GiveUp(t.Context().Err()))
	require.Zero(t, r.View().ByID("p").Ongoing())
	require.Equal(t, 29, r.View().ByID("d").Ongoing())
}

func TestDecodeLegAgain(t *testing.T) {
	r := split(t, Options{}, member("p", prefills, label("x")), member("d", decodes, label("x")),
		member("e", decodes, label("x"), room(31)),
		member("other", decodes))
	decoding(t, r, 30)
	q := ask(20_000)
	p, d, pre, b := legsAt(t, r, q)
	require.Equal(t, "p", p)
	from := pre.Decision.Replica
	pre.Release()
	b.Release()
	NextAttempt(q, b.Decision.Replica)
	again := new(Reservation)
	require.NoError(t, r.Reserve(t.Context(), q, again, How{NoWait: true, Legs: &Legs{From: from}}))
	require.NotEqual(t, d, again.Decision.Replica.ID)
	require.Contains(t, []string{"d", "e"}, again.Decision.Replica.ID)
	require.Equal(t, policy.ReasonRetry, again.Decision.Reason)
	require.Equal(t, policy.ReasonDecode, again.Decision.Rule)
	require.Zero(t, again.Decision.Replica.QueuedTokens())
	require.Zero(t, from.Ongoing())

	q.Exclude = []string{"d", "e"}
	require.ErrorIs(t, r.Reserve(t.Context(), q, new(Reservation), How{NoWait: true, Legs: &Legs{From: from}}), ErrNoSuchReplica)
	require.NoError(t, r.Reserve(t.Context(), q, new(Reservation), How{NoWait: true}), "whole, it goes to the others")
	r.Fleet.SetConnected("d", false)
	r.Fleet.SetConnected("e", false)
	q.Exclude = nil
	require.ErrorIs(t, r.Reserve(t.Context(), q, new(Reservation), How{NoWait: true, Legs: &Legs{From: from}}), ErrNotConnected)
}

func TestAssignedLegs(t *testing.T) {
	r := split(t, Options{}, member("p", prefills, room(1)), member("d", decodes))
	assigned := func() *Assigned {
		return &Assigned{Replica: "d", Decision: policy.To(nil, policy.ReasonCentral), Prefill: &Assigned{Replica: "p"}}
	}
	pre, b := new(Reservation), new(Reservation)
	require.NoError(t, r.Reserve(t.Context(), ask(100), b, How{Assigned: assigned(), Legs: &Legs{Prefill: pre, Only: true}}))
	require.Equal(t, []string{"p", "d"}, []string{pre.Decision.Replica.ID, b.Decision.Replica.ID})
	require.Equal(t, []int{100, 0}, []int{pre.Decision.Replica.QueuedTokens(), b.Decision.Replica.QueuedTokens()})
	other := new(Reservation)
	again := How{Assigned: assigned(), Legs: &Legs{Prefill: new(Reservation)}}
	require.ErrorIs(t, r.Reserve(t.Context(), ask(100), other, again), ErrFull)
	require.Equal(t, 1, b.Decision.Replica.Ongoing(), "neither leg is reserved without the other")
	pre.Release()
	b.Release()
	idle(t, r)
}

// The policy of prefill legs observes the routes that it is about, and so does that of whole requests.
func TestLegsAreObserved(t *testing.T) {
	type seen struct{ routed, completed, added []string }
	watch := func(s *seen) policy.Policy {
		p := loading(leastLoaded)
		p.Observer = policy.Observer{
			Routed: func(_ *policy.Request, d policy.Decision) { s.routed = append(s.routed, d.Replica.ID) },
			Completed: func(_ *policy.Request, d policy.Decision, _ policy.Outcome) {
				s.completed = append(s.completed, d.Replica.ID)
			},
			FleetChanged: func(c policy.FleetChange) {
				for _, rep := range c.Added {
					s.added = append(s.added, rep.ID)
				}
			},
		}
		return p
	}
	var whole, legs seen
	o := Options{Policy: watch(&whole), Prefill: func() (policy.Policy, error) { return watch(&legs), nil }}
	r := connected(t, o, member("p", prefills), member("d", decodes), member("b"))
	require.Equal(t, seen{added: []string{"d", "b"}}, whole)
	require.Equal(t, seen{added: []string{"p", "b"}}, legs)
	decoding(t, r, 20)
	whole = seen{}
	q := ask(20_000)
	_, d, pre, b := legsAt(t, r, q)
	pre.Release()
	r.Complete(q, pre.Decision, policy.Outcome{Sent: true})
	b.Release()
	r.Complete(q, b.Decision, policy.Outcome{Sent: true})
	require.Equal(t, seen{added: []string{"p", "b"}, routed: []string{"p"}, completed: []string{"p"}}, legs)
	require.Equal(t, seen{routed: []string{d}, completed: []string{d}}, whole)
}

// The index of the prefill legs counts, and it is closed with the Router.
func TestPrefillersIndex(t *testing.T) {
	closed := 0
	p := loading(leastLoaded)
	p.IndexStats = func() policy.IndexStats {
		return policy.IndexStats{Bytes: 2, Blocks: 3, Evictions: 4, LiveEvictions: 5, Refused: 6}
	}
	p.Close = func() error { closed++; return nil }
	r := split(t, Options{Policy: p}, member("a"))
	require.Equal(t, p.IndexStats(), r.Policy().IndexStats())
	r.Fleet.Set([]Member{member("a"), member("p", prefills)})
	both := policy.IndexStats{Bytes: 4, Blocks: 6, Evictions: 8, LiveEvictions: 10, Refused: 12}
	require.Equal(t, both, r.Policy().IndexStats())
	require.NoError(t, r.Close())
	require.Equal(t, 2, closed)
}

// The end of a leg belongs to its own request, whichever request of the call the host passes.
func TestLegsEndApart(t *testing.T) {
	var ended []*policy.Request
	p := loading(leastLoaded)
	p.Prepare = func(_ context.Context, q *policy.Request, v policy.View) error {
		q.Prepared = len(v.Replicas())
		return nil
	}
	p.Observer.Completed = func(q *policy.Request, _ policy.Decision, _ policy.Outcome) { ended = append(ended, q) }
	r := split(t, Options{Policy: p}, member("p", prefills), member("d", decodes), member("e", decodes))
	decoding(t, r, 20)
	q := ask(20_000)
	_, _, pre, b := legsAt(t, r, q)
	pre.Release()
	r.Complete(new(policy.Request), pre.Decision, policy.Outcome{Sent: true})
	b.Release()
	r.Complete(q, b.Decision, policy.Outcome{Sent: true})
	require.Len(t, ended, 2)
	require.Equal(t, []any{1, 2}, []any{ended[0].Prepared, ended[1].Prepared})
}

// An engine with a role may refuse a request that is not split.
func TestPairOnly(t *testing.T) {
	r := split(t, Options{}, member("p", prefills, room(1)), member("d", decodes, room(2)),
		member("e", decodes, room(2), label("x")))
	only := func(q *policy.Request, b, pre *Reservation) error {
		return r.Reserve(t.Context(), q, b, How{NoWait: true, Legs: &Legs{Prefill: pre, Only: true}})
	}
	require.ErrorIs(t, only(ask(10), new(Reservation), nil), ErrNoSuchReplica)
	pre, b := new(Reservation), new(Reservation)
	require.NoError(t, only(ask(10), b, pre), "without a comparison of costs")
	require.Equal(t, []string{"p", "d"}, []string{pre.Decision.Replica.ID, b.Decision.Replica.ID})

	full, waits, ticket := new(Reservation), new(Reservation), new(Ticket)
	require.ErrorIs(t, only(ask(10), full, new(Reservation)), ErrFull)
	how := How{Ticket: ticket, Legs: &Legs{Prefill: full, Only: true}}
	require.ErrorIs(t, r.Reserve(t.Context(), ask(10), waits, how), ErrQueued)
	plain, later := new(Reservation), new(Ticket) // queued behind it; takes any replica
	decoding(t, r, 1)
	q := &policy.Request{Exclude: []string{"e"}}
	require.ErrorIs(t, r.Reserve(t.Context(), q, plain, How{Ticket: later}), ErrQueued)
	pre.Release()
	require.Equal(t, 2, r.Queued(), "the decode leg has no room yet")
	b.Release()
	require.NoError(t, ticket.Take())
	require.Equal(t, []string{"p", "d"}, []string{full.Decision.Replica.ID, waits.Decision.Replica.ID})
	full.Release()
	waits.Release()
	require.NoError(t, later.Take())
	require.Equal(t, "d", plain.Decision.Replica.ID)

	r.Fleet.Set(append([]Member{member("both")}, member("p", prefills), member("d", decodes)))
	connectAll(r)
	for range 10 {
		require.Equal(t, "both", func() string {
			b := new(Reservation)
			require.NoError(t, only(ask(10), b, nil))
			return b.Decision.Replica.ID
		}())
	}
}

// Such an engine refuses legs where it has no role, also next to others of the same label, and where a server
// names it.
func TestPairOnlyLegs(t *testing.T) {
	r := split(t, Options{}, member("p", prefills), member("d", decodes), member("b"), member("c"))
	for _, busy := range []string{"p", "d", "d", "b", "b", "c", "c"} {
		for range 10 {
			pick(t, r, &policy.Request{Pin: busy})
		}
	}
	pre, b := new(Reservation), new(Reservation)
	how := How{NoWait: true, Legs: &Legs{Prefill: pre, Only: true}}
	for range 5 {
		require.NoError(t, r.Reserve(t.Context(), ask(30_000), b, how))
		require.Equal(t, []string{"p", "d"}, []string{pre.Decision.Replica.ID, b.Decision.Replica.ID})
		pre.Release()
		b.Release()
	}
	to := func(id string) *Assigned {
		return &Assigned{Replica: id, Decision: policy.Decision{Reason: policy.ReasonCentral}}
	}
	for _, c := range []struct{ prefill, decode string }{{"b", "d"}, {"p", "b"}} {
		how.Assigned = to(c.decode)
		how.Assigned.Prefill = to(c.prefill)
		require.ErrorIs(t, r.Reserve(t.Context(), ask(10), b, how), ErrNoSuchReplica, c)
	}
	how.Assigned = to("b")
	require.NoError(t, r.Reserve(t.Context(), ask(10), b, how), "the whole request")
	b.Release()
	how.Assigned, how.Query = nil, true
	for _, id := range []string{"p", "d"} { // there is no pair without it
		q := ask(30_000)
		q.Exclude = []string{id}
		require.NoError(t, r.Reserve(t.Context(), q, b, how))
		require.Nil(t, pre.Decision.Replica)
		require.Contains(t, []string{"b", "c"}, b.Decision.Replica.ID)
		b.Release()
	}
}

// Among decode replicas that are equally busy, the first does not get the requests of all clients.
func TestEqualDecodeReplicas(t *testing.T) {
	r := split(t, Options{}, member("p", prefills), member("d", decodes), member("e", decodes), member("f", decodes))
	decoding(t, r, 30)
	seen := map[string]bool{}
	for range 60 {
		_, d, pre, b := legsAt(t, r, ask(20_000))
		seen[d] = true
		pre.Release()
		b.Release()
	}
	require.Len(t, seen, 3)
}

// A request outside the rollout percentage is split too.
func TestLegsOfARollout(t *testing.T) {
	p := choosing(func(*policy.Request, policy.View) policy.Decision { panic("the kill switch is on") })
	r := split(t, Options{Policy: p, Plain: choosing(firstFree)}, member("p", prefills), member("d", decodes))
	off := policy.Limit(policy.Off)
	require.NoError(t, r.Rollout.Set(&off))
	decoding(t, r, 20)
	prefill, d, pre, b := legsAt(t, r, ask(20_000))
	require.Equal(t, []string{"p", "d"}, []string{prefill, d})
	pre.Release()
	b.Release()
}
