package router

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

func TestPickErrors(t *testing.T) {
	fleet := []Member{
		member("a", room(1), models("m")), member("b", room(1), models("m")),
		member("off", models("m")), member("drains", draining, models("m", "old")),
	}
	for name, c := range map[string]struct {
		q    policy.Request
		full bool // a and b
		err  error
	}{
		"room":                     {policy.Request{}, false, nil},
		"full":                     {policy.Request{}, true, ErrFull},
		"pinned":                   {policy.Request{Pin: "b"}, false, nil},
		"pinned to a full one":     {policy.Request{Pin: "b"}, true, ErrFull},
		"pinned to an unknown one": {policy.Request{Pin: "z"}, false, ErrNoSuchReplica},
		"pinned, not connected":    {policy.Request{Pin: "off"}, false, ErrNotConnected},
		"pinned and excluded":      {policy.Request{Pin: "a", Exclude: []string{"a"}}, false, ErrNoSuchReplica},
		"pinned to a draining one": {policy.Request{Pin: "drains"}, false, ErrNoSuchReplica},
		"excludes the connected":   {policy.Request{Exclude: []string{"a", "b"}}, false, ErrNotConnected},
		"excludes all":             {policy.Request{Exclude: []string{"a", "b", "off"}}, false, ErrNoSuchReplica},
		"model of a draining one":  {policy.Request{Model: "old"}, false, ErrNoSuchReplica},
		"model of no replica":      {policy.Request{Model: "other"}, false, nil},
		"model, full":              {policy.Request{Model: "m"}, true, ErrFull},
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t, Options{}, fleet...)
			r.Fleet.SetConnected("off", false)
			if c.full {
				pick(t, r, &policy.Request{Pin: "a"})
				pick(t, r, &policy.Request{Pin: "b"})
			}
			var b Reservation
			require.Equal(t, c.err, r.Reserve(t.Context(), &c.q, &b, How{NoWait: true}))
			require.Equal(t, c.err == nil, b.Held())
		})
	}
	r, err := NewRouter(Options{Policy: choosing(firstFree)})
	require.NoError(t, err)
	require.Equal(t, ErrNotConnected, r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}))
	require.NoError(t, r.Close())
	require.Equal(t, ErrClosed, r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}))
	_, err = NewRouter(Options{})
	require.ErrorContains(t, err, "Policy")
}

func TestReservationLife(t *testing.T) {
	r := connected(t, Options{}, member("a", func(m *Member) { m.Weight = 2 }))
	rep := r.View().ByID("a")
	var none Reservation
	none.Release()
	none.PrefillDone()
	require.False(t, none.Held())
	require.Nil(t, none.Router())

	b := pick(t, r, &policy.Request{PromptTokens: 900})
	require.Same(t, r, b.Router())
	require.Zero(t, b.Decision.Load, "the load it found, without its own")
	require.Equal(t, 900, rep.QueuedTokens())
	require.Equal(t, (900+policy.RequestCost)/2.0, r.View().Load(rep))
	require.Equal(t, r.View().Load(rep), meanLoad(r.View()))
	require.Equal(t, ErrHeld, r.Reserve(t.Context(), new(policy.Request), b, How{NoWait: true}), "its load would be lost")
	require.Equal(t, ErrHeld, r.Reserve(t.Context(), new(policy.Request), b, How{}))
	require.Equal(t, "a", b.Decision.Replica.ID)

	b.PrefillDone()
	b.PrefillDone()
	require.Zero(t, rep.QueuedTokens())
	require.Equal(t, 1, rep.Ongoing())
	b.Release()
	b.Release()
	b.PrefillDone()
	require.Zero(t, rep.Ongoing())
	require.Equal(t, "a", b.Decision.Replica.ID, "readable after Release")
	require.NoError(t, r.Reserve(t.Context(), new(policy.Request), b, How{NoWait: true}), "may be used again")
}

// Huge lengths do not overflow from one counter of the load into the other.
func TestHugePrompts(t *testing.T) {
	matched := 0
	r := connected(t, Options{Policy: choosing(func(q *policy.Request, v policy.View) policy.Decision {
		d := firstFree(q, v)
		d.MatchedTokens = matched
		return d
	})}, member("a"))
	rep := r.View().ByID("a")
	var bs []*Reservation
	for _, n := range []int{math.MaxInt, math.MinInt, -1, 1 << 40, 5} {
		for _, matched = range []int{0, math.MaxInt, -math.MaxInt} {
			bs = append(bs, pick(t, r, &policy.Request{PromptTokens: n}))
			require.Equal(t, len(bs), rep.Ongoing())
			require.GreaterOrEqual(t, rep.QueuedTokens(), 0)
		}
	}
	for _, b := range bs {
		b.Release()
	}
	require.Zero(t, liveOf(rep).Book.Load())
}

func TestLeavesAndComesBack(t *testing.T) {
	r := connected(t, Options{MaxOngoing: 1}, members(2)...)
	b := pick(t, r, &policy.Request{Pin: "r1", PromptTokens: 7})
	r.Fleet.Set(members(1))
	require.Len(t, departed(r), 1)
	require.False(t, b.Decision.Replica.Connected())
	r.Fleet.Set(members(2))
	require.Empty(t, departed(r))
	back := r.View().ByID("r1")
	require.False(t, back.Connected(), "only after the host connects it")
	r.Fleet.SetConnected("r1", true)
	require.Equal(t, 1, back.Ongoing())
	require.Equal(t, ErrFull, r.Reserve(t.Context(), &policy.Request{Pin: "r1"}, new(Reservation), How{NoWait: true}))
	w := enqueue(t, r, &policy.Request{Pin: "r1"})
	b.Release()
	require.Equal(t, "r1", servedBy(t, w))

	r.Fleet.Set(members(1))
	w.b.Release()
	require.Empty(t, departed(r), "removed with its last reservation")
}

func TestReasons(t *testing.T) {
	r := connected(t, Options{MaxOngoing: 1, Now: ticking()}, members(2)...)
	q := new(policy.Request)
	b := pick(t, r, q)
	want := policy.Decision{Replica: r.View().ByID("r0"), Reason: "first", Place: -1}
	part.OfDecision(&want).Observed = true
	require.Equal(t, want, b.Decision)
	require.Equal(t, 1, q.Attempt())

	NextAttempt(q, b.Decision.Replica)
	require.Equal(t, 2, q.Attempt())
	require.True(t, q.Tried(b.Decision.Replica))
	retry := pick(t, r, q)
	require.Equal(t, [2]policy.Reason{policy.ReasonRetry, "first"}, [2]policy.Reason{retry.Decision.Reason, retry.Decision.Rule})

	NextAttempt(q, nil)
	w := enqueue(t, r, q)
	again := &policy.Request{Pin: "r0"}
	NextAttempt(again, nil)
	pinned := enqueue(t, r, again)
	b.Release()
	require.Equal(t, "r0", servedBy(t, w))
	require.Equal(t, [2]policy.Reason{policy.ReasonQueued, "first"}, [2]policy.Reason{w.b.Decision.Reason, w.b.Decision.Rule})
	require.Positive(t, w.b.Decision.Queued)
	w.b.Release()
	servedBy(t, pinned)
	require.Equal(t, [2]policy.Reason{policy.ReasonQueued, policy.ReasonPinned}, [2]policy.Reason{pinned.b.Decision.Reason, pinned.b.Decision.Rule})
	pinned.b.Release()
	require.Equal(t, policy.ReasonPinned, pick(t, r, &policy.Request{Pin: "r0"}).Decision.Reason)
}

func TestSetFleet(t *testing.T) {
	var seen [][2]int
	pol := choosing(firstFree)
	pol.Observer.FleetChanged = func(c policy.FleetChange) {
		if n := [2]int{len(c.Added), len(c.Removed)}; n != [2]int{} {
			seen = append(seen, n)
		}
	}
	r := connected(t, Options{Policy: pol}, members(3)...)
	v := r.View()

	r.Fleet.Set(members(3))
	require.Same(t, v, r.View(), "nothing has changed")
	r.Fleet.SetConnected("r1", true)
	r.Fleet.SetConnected("unknown", true)
	require.Same(t, v, r.View())

	stats := map[string]float64{"queue": 1}
	models := []string{"m"}
	ms := members(3)
	ms[1].Stats, ms[1].Models, ms[1].KVEvents = stats, models, "tcp://a:1"
	r.Fleet.Set(ms)
	require.Greater(t, r.View().Epoch(), v.Epoch())
	require.Same(t, v.ByID("r0"), r.View().ByID("r0"))
	changed := r.View().ByID("r1")
	require.NotSame(t, v.ByID("r1"), changed)
	stats["queue"], models[0] = 2, "other"
	require.Equal(t, 1.0, changed.Stats["queue"], "the host's map is its own")
	require.Equal(t, "m", changed.Models[0])
	require.True(t, changed.Connected())
	r.Fleet.Set(ms)
	require.Equal(t, 2.0, r.View().ByID("r1").Stats["queue"])

	host := new(int)
	ms[2].Host = host
	r.Fleet.Set(append(ms[1:3:3], ms[2]))
	require.Equal(t, any(host), r.View().Replicas()[1].Host())
	require.Equal(t, 1, r.View().ByID("r2").Index())
	require.Equal(t, [][2]int{{3, 0}, {0, 1}}, seen, "observes each replica that joins or leaves, once, and nothing else")

	epoch := r.View().Epoch()
	r.Fleet.SetConnected("r1", false)
	require.Equal(t, epoch, r.View().Epoch(), "a short loss of a connection is no change of membership")
	require.Len(t, r.View().Connected(), 1)
}

// A policy that panics takes its call down, and not the Router with it.
func TestPolicyPanics(t *testing.T) {
	bad := true
	r := connected(t, Options{Policy: choosing(func(q *policy.Request, v policy.View) policy.Decision {
		if bad {
			panic("policy")
		}
		return firstFree(q, v)
	})}, members(1)...)
	require.Panics(t, func() { r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{NoWait: true}) })
	require.Panics(t, func() { r.Reserve(t.Context(), new(policy.Request), new(Reservation), How{}) })
	bad = false
	pick(t, r, new(policy.Request))
}

func TestAttributesEqual(t *testing.T) {
	full := policy.Attributes{
		ID: "a", Address: "h:1", Zone: "z", Node: "n", Weight: 1, MaxOngoing: 1, Models: []string{"m"},
		Adapters: []string{"x"}, KVEvents: "tcp://h:2", Draining: true, Stats: map[string]float64{"s": 1},
		KVEventsReplay: "tcp://h:3", Ranks: 2,
		Role: policy.RolePrefill, Pair: "p", KVBootstrap: "h:4", KVEngineID: "e",
	}
	require.True(t, full.Equal(full))
	for i, change := range []func(*policy.Attributes){
		func(a *policy.Attributes) { a.ID = "" }, func(a *policy.Attributes) { a.Address = "" },
		func(a *policy.Attributes) { a.Zone = "" }, func(a *policy.Attributes) { a.Node = "" },
		func(a *policy.Attributes) { a.Weight = 2 }, func(a *policy.Attributes) { a.MaxOngoing = 2 },
		func(a *policy.Attributes) { a.Models = nil }, func(a *policy.Attributes) { a.Adapters = nil },
		func(a *policy.Attributes) { a.KVEvents = "" }, func(a *policy.Attributes) { a.Draining = false },
		func(a *policy.Attributes) { a.KVEventsReplay = "" }, func(a *policy.Attributes) { a.Ranks = 3 },
		func(a *policy.Attributes) { a.Role = policy.RoleDecode }, func(a *policy.Attributes) { a.Pair = "" },
		func(a *policy.Attributes) { a.KVBootstrap = "" }, func(a *policy.Attributes) { a.KVEngineID = "" },
		func(a *policy.Attributes) { a.Stats = map[string]float64{"s": 2} },
	} {
		other := full
		change(&other)
		require.False(t, full.Equal(other), i)
	}
}

func TestPrompt(t *testing.T) {
	for want, p := range map[int]policy.Prompt{0: {}, 1: {Text: "a"}, 2: {Text: "hello"}, 3: {Tokens: []uint32{1, 2, 3}}} {
		require.Equal(t, want, p.Len())
		require.Equal(t, want == 0, p.Empty())
		q := new(policy.Request)
		q.SetPrompt(p)
		DropPrompt(q)
		require.True(t, q.Prompt.Empty())
		require.Equal(t, want, q.PromptTokens)
	}
}
