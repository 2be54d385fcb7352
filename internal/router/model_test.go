package router

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

var (
	modelSeed  = flag.Uint64("routing.seed", 0, "replay the model test with this one seed")
	modelSeeds = flag.Uint64("routing.seeds", 8, "seeds of the model test per policy")
	modelSteps = flag.Int("routing.steps", 1500, "steps of the model test per seed")
)

// TestModel drives a Router with random lives of calls over a random fleet, in one goroutine, next to a naive
// model, and checks every promise after every step. A failure names the seed; replay it with
//
//	go test ./internal/router -run 'TestModel/NAME$' -routing.seed SEED -routing.steps STEPS
func TestModel(t *testing.T) {
	policies := map[string]func() policy.Policy{
		"least_loaded": func() policy.Policy { return loading(leastLoaded) },
		"random":       func() policy.Policy { return choosing(anyAtRandom) },
		"least_of_two": func() policy.Policy { return choosing(leastOfTwo) },
		"fixed_order":  func() policy.Policy { return choosing(fixedOrder) },
		"remembering":  remembering,
		"capricious":   func() policy.Policy { return choosing(capricious) },
		"hostile":      newHostile,
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		t.Run(name, func(t *testing.T) {
			first, last := *modelSeed, *modelSeed
			if *modelSeed == 0 {
				first, last = 1, *modelSeeds
			}
			for seed := first; seed <= last; seed++ {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					t.Cleanup(func() {
						if t.Failed() {
							t.Logf("replay with -run 'TestModel/%s$' -routing.seed %d -routing.steps %d", name, seed, *modelSteps)
						}
					})
					m := newModel(t, seed, policies[name]())
					for range *modelSteps {
						m.step()
					}
					m.finish()
				})
			}
		})
	}
}

// call is one call in the model: it waits, or holds a reservation, or has ended.
type call struct {
	q       *policy.Request
	b       *Reservation
	w       *waiter
	id      string // of the replica reserved
	charged int
	ended   bool
}

func (c *call) waiting() bool { return c.w != nil && c.w.waiting }

// model is a naive model of a Router.
type model struct {
	t     *testing.T
	rnd   *rand.Rand
	r     *Router
	bound int
	// fleet and connected are the Router's membership and connections.
	fleet     []Member
	connected map[string]bool
	live      []*call        // waiting, or with a reservation
	picks     map[string]int // reservations made in this step
	peerLoad  map[string]peerLoad
	clock     *pause
	arrived   *policy.Request // in this step, last
}

func newModel(t *testing.T, seed uint64, p policy.Policy) *model {
	m := &model{
		t: t, rnd: rand.New(rand.NewPCG(seed, 7)), connected: map[string]bool{},
		bound: 3 + int(seed%8)*3, peerLoad: map[string]peerLoad{}, clock: newPause(),
	}
	o := m.clock.options(Options{
		Policy: p, MaxOngoing: 2, MaxQueued: m.bound, Node: "n0", Zone: "z0",
		Rand: rand.New(rand.NewPCG(seed, 11)),
	})
	o.Now = m.clock.read
	r, err := NewRouter(o)
	require.NoError(t, err)
	m.r = r
	return m
}

func (m *model) chance(percent int) bool { return m.rnd.IntN(100) < percent }

func (m *model) someID() string { return fmt.Sprintf("r%d", m.rnd.IntN(8)) }

// actions are what may happen in a step, and how often.
var actions = []struct {
	weight int
	do     func(*model)
}{
	{40, func(m *model) { m.arrive(m.request()) }},
	{21, (*model).end},
	{2, (*model).setPeerLoad},
	{7, (*model).firstMessage},
	{6, (*model).retry},
	{5, (*model).refuse},
	{4, (*model).hangUp},
	{8, (*model).change},
	{9, (*model).blink},
	{4, (*model).jump},
	{1, func(m *model) {
		m.r.Fleet.Disconnect()
		clear(m.connected)
	}},
}

func (m *model) step() {
	m.picks = map[string]int{}
	sum := 0
	for _, a := range actions {
		sum += a.weight
	}
	n := m.rnd.IntN(sum)
	for _, a := range actions {
		if n -= a.weight; n < 0 {
			a.do(m)
			break
		}
	}
	m.clock.fire()
	m.collect()
	m.check()
}

// firstMessage lets a call have its first message, and then another.
func (m *model) firstMessage() {
	if c := m.one((*call).holds); c != nil {
		c.b.PrefillDone()
		c.b.PrefillDone()
		c.charged = 0
	}
}

func (m *model) hangUp() {
	if c := m.one((*call).waiting); c != nil {
		m.cancel(c)
	}
}

// blink opens or closes a connection.
func (m *model) blink() {
	id := m.someID()
	up := m.chance(75)
	m.r.Fleet.SetConnected(id, up)
	if m.find(id) != nil {
		m.connected[id] = up
	}
}

func (m *model) request() *policy.Request {
	q := &policy.Request{Session: "sessions"[:m.rnd.IntN(8)], PromptTokens: m.rnd.IntN(5000)}
	if m.chance(10) {
		q.ID = "bad"
	}
	if m.chance(10) {
		q.Pin = m.someID()
	}
	if m.chance(20) {
		q.Exclude = []string{m.someID(), m.someID()}
	}
	if m.chance(25) {
		q.Model = []string{"a", "b", "c"}[m.rnd.IntN(3)]
	}
	if m.chance(40) {
		q.Priority = int(m.rnd.IntN(3) - 1)
	}
	if m.chance(25) {
		q.Adapter = []string{"x", "y"}[m.rnd.IntN(2)]
	}
	return q
}

// arrive lets a request pick, or wait where it must and may.
func (m *model) arrive(q *policy.Request) {
	c := &call{q: q, b: new(Reservation)}
	waits := m.chance(80)
	before := m.queued()
	m.arrived = q
	var err error
	if waits {
		c.w, err = pickOrEnqueue(m.r, m.t.Context(), q, c.b)
	} else {
		err = m.r.Reserve(m.t.Context(), q, c.b, How{NoWait: true})
	}
	m.settled(false) // calls that the clock served before it, or that its priority displaced
	switch {
	case err == nil && c.w == nil:
		m.reserved(c)
		require.True(m.t, c.b.Held())
	case err == nil:
		m.live = append(m.live, c)
	default:
		require.False(m.t, c.b.Held())
	}
	want, roomLeft := m.mayServe(q)
	switch {
	case want != nil:
		require.Equal(m.t, want, err)
	case err == nil:
	case waits:
		m.turnedAway(q, err, before)
	default:
		require.Equal(m.t, ErrFull, err)
		if c.b.Decision.WaitFor == nil {
			require.False(m.t, roomLeft, "full although a replica has room")
		}
	}
}

func (m *model) find(id string) *Member {
	if i := slices.IndexFunc(m.fleet, func(mem Member) bool { return mem.ID == id }); i >= 0 {
		return &m.fleet[i]
	}
	return nil
}

func (c *call) holds() bool { return c.w == nil && !c.ended }

// one returns a random call of those that are in the state.
func (m *model) one(in func(*call) bool) *call {
	var cs []*call
	for _, c := range m.live {
		if in(c) {
			cs = append(cs, c)
		}
	}
	if len(cs) == 0 {
		return nil
	}
	return cs[m.rnd.IntN(len(cs))]
}

func (m *model) queued() (n int) {
	for _, c := range m.live {
		if c.waiting() {
			n++
		}
	}
	return n
}

func (m *model) count(id string) (n int) {
	for _, c := range m.live {
		if c.holds() && c.id == id {
			n++
		}
	}
	return n
}

func (m *model) end() {
	c := m.one((*call).holds)
	if c == nil {
		return
	}
	m.forget(c)
	c.b.Release()
	c.b.Release()
	c.b.PrefillDone()
	require.False(m.t, c.b.Held())
	d := c.b.Decision
	m.r.Complete(c.q, d, policy.Outcome{Sent: true, FirstMessage: m.took(d.Replica.ID), Usage: policy.NoUsage})
}

func (m *model) forget(c *call) {
	c.ended = true
	m.live = slices.DeleteFunc(m.live, func(o *call) bool { return o == c })
}

func (m *model) retry() {
	c := m.one((*call).holds)
	if c == nil {
		return
	}
	m.forget(c)
	c.b.Release()
	m.collect()
	NextAttempt(c.q, c.b.Decision.Replica)
	m.arrive(c.q)
}

func (m *model) cancel(c *call) {
	ctx, cancel := context.WithCancel(m.t.Context())
	cancel()
	served := !c.w.waiting
	err := (&Ticket{m.r, c.w}).GiveUp(endOf(ctx))
	var we *WaitError
	require.ErrorAs(m.t, err, &we)
	require.ErrorIs(m.t, err, context.Canceled)
	require.Equal(m.t, served, c.b.Decision.Replica != nil)
	require.False(m.t, c.b.Held())
	m.forget(c)
}

// change replaces the membership: adds, removes, shuffles, repeats, or changes
// attributes.
func (m *model) change() {
	var next []Member
	for _, mem := range m.fleet {
		if m.chance(10) {
			continue
		}
		if m.chance(30) {
			mem = m.member(mem.ID)
		}
		next = append(next, mem)
	}
	for range m.rnd.IntN(3) {
		id := m.someID()
		if !slices.ContainsFunc(next, func(o Member) bool { return o.ID == id }) {
			next = append(next, m.member(id))
		}
	}
	if m.chance(30) {
		m.rnd.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
	}
	m.fleet = next
	members := slices.Clone(next)
	if len(next) > 0 && m.chance(10) {
		twin := next[0]
		twin.MaxOngoing = 100
		members = append(members, twin) // the first counts
	}
	before := m.r.View()
	m.r.Fleet.Set(members)
	for id := range m.connected {
		if m.find(id) == nil {
			delete(m.connected, id)
		}
	}
	for id := range m.peerLoad {
		if m.find(id) == nil {
			delete(m.peerLoad, id)
		}
	}
	same := len(before.Replicas()) == len(next)
	for i := range next {
		same = same && before.Replicas()[i].Attributes.Equal(next[i].Attributes)
	}
	require.Equal(m.t, same, m.r.View().Epoch() == before.Epoch())
}

func (m *model) member(id string) Member {
	mem := member(id)
	mem.MaxOngoing = []int{0, 0, 1, 2, 3, 5, -1}[m.rnd.IntN(7)]
	mem.Weight = []float64{0, 0.5, 1, 3}[m.rnd.IntN(4)]
	mem.Draining = m.chance(10)
	mem.Ranks = []int{0, 0, 1, 4}[m.rnd.IntN(4)]
	mem.Node = fmt.Sprintf("n%d", m.rnd.IntN(3))
	mem.Zone = fmt.Sprintf("z%d", m.rnd.IntN(2))
	if m.chance(30) {
		mem.Models = []string{[]string{"a", "b"}[m.rnd.IntN(2)]}
	}
	if m.chance(30) {
		mem.Adapters = []string{[]string{"x", "y"}[m.rnd.IntN(2)]}
	}
	if m.chance(10) {
		mem.Stats = map[string]float64{"n": m.rnd.Float64()}
	}
	return mem
}

// collect records what the step did to the waiters. Some of those served give up at once, which may serve others.
func (m *model) collect() { m.settled(true) }

func (m *model) settled(someGiveUp bool) {
	for again := true; again; {
		again = false
		for _, c := range slices.Clone(m.live) {
			if c.w == nil || c.w.waiting {
				continue
			}
			again = true
			if errors.Is(c.w.err, ErrQueueFull) {
				m.displaced(c)
				m.forget(c)
				continue
			}
			if c.w.err != nil {
				want, _ := m.mayServe(c.q)
				require.Equal(m.t, want, c.w.err, "refused without a reason")
				m.forget(c)
				continue
			}
			w := c.w
			require.Equal(m.t, policy.ReasonQueued, c.b.Decision.Reason)
			require.True(m.t, c.b.Decision.Queued > 0 || m.clock.backwards)
			m.reserved(c)
			m.notOvertaking(c, w)
			if someGiveUp && m.chance(15) {
				c.w = w
				m.cancel(c)
			}
		}
	}
}
