package routing

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
)

var (
	modelSeed  = flag.Uint64("routing.seed", 0, "replay the model test with this one seed")
	modelSteps = flag.Int("routing.steps", 1500, "steps of the model test per seed")
)

// TestModel drives a Router with random lives of calls over a random fleet, one
// goroutine, beside a naive model, and checks every promise after every step. A
// failure names the seed; replay it with
//
//	go test ./balancer/routing -run 'TestModel/NAME' -routing.seed SEED
func TestModel(t *testing.T) {
	policies := map[string]func() Policy{
		"least_loaded": func() Policy { return choosing(leastLoaded) },
		"random":       func() Policy { return choosing(anyAtRandom) },
		"least_of_two": func() Policy { return choosing(leastOfTwo) },
		"fixed_order":  func() Policy { return choosing(fixedOrder) },
		"remembering":  func() Policy { return remembering{} },
		"capricious":   func() Policy { return choosing(capricious) },
		"hostile":      func() Policy { return &hostile{} },
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		t.Run(name, func(t *testing.T) {
			seeds := []uint64{*modelSeed}
			if *modelSeed == 0 {
				seeds = []uint64{1, 2, 3, 4, 5, 6, 7, 8}
			}
			for _, seed := range seeds {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					t.Cleanup(func() {
						if t.Failed() {
							t.Logf("replay with -run 'TestModel/%s' -routing.seed %d", name, seed)
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

func anyAtRandom(q *Request, v *View) Decision {
	all := v.Connected()
	from := v.IntN(len(all))
	for i := range all {
		if r := all[(from+i)%len(all)]; v.Available(q, r) {
			return To(r, "random")
		}
	}
	return Wait()
}

func leastOfTwo(q *Request, v *View) Decision {
	if r := v.LeastOfTwo(q); r != nil {
		return To(r, ReasonLeastOfTwo)
	}
	return Wait()
}

// fixedOrder walks from a place that the session fixes and takes the first of
// three that are connected; when these are full it waits for them and no others.
func fixedOrder(q *Request, v *View) Decision {
	return inOrder(q, v, v.Replicas(), len(q.Session))
}

func inOrder(q *Request, v *View, all []*Replica, from int) Decision {
	var want []*Replica
	for i := range all {
		r := all[(from+i)%len(all)]
		if !r.Connected() || r.Draining {
			continue
		}
		if v.Available(q, r) {
			return To(r, ReasonRing)
		}
		if want = append(want, r); len(want) == 3 {
			break
		}
	}
	return Wait(want...)
}

// capricious changes its mind each time about whom it would take.
func capricious(q *Request, v *View) Decision {
	return inOrder(q, v, v.Replicas(), v.IntN(len(v.Replicas())))
}

// remembering chooses among the replicas of the View that Prepare saw.
type remembering struct{}

func (remembering) Prepare(_ context.Context, q *Request, v *View) error {
	q.Prepared = v.Replicas()
	_ = v.MeanLoad()
	if q.ID == "bad" {
		return errors.New("bad")
	}
	return nil
}

func (remembering) Choose(q *Request, v *View) Decision {
	return inOrder(q, v, q.Prepared.([]*Replica), len(q.Session))
}

// hostile breaks every rule that a policy may break.
type hostile struct{ seen []*Replica }

func (*hostile) Uses() Uses                                     { return 0 }
func (*hostile) Prepare(context.Context, *Request, *View) error { return nil }
func (h *hostile) Choose(q *Request, v *View) Decision {
	for _, r := range v.Replicas() {
		if !slices.Contains(h.seen, r) && len(h.seen) < 300 {
			h.seen = append(h.seen, r) // most of them will have left
		}
	}
	one := func() *Replica { return h.seen[v.IntN(len(h.seen))] }
	switch v.IntN(8) {
	case 0:
		return Wait()
	case 1:
		return Wait(one(), one(), one())
	case 2:
		return Wait(nil, one())
	case 3:
		return Wait([]*Replica{}...)
	case 4:
		return To(&Replica{}, "made up")
	case 5:
		return Decision{Replica: one(), WaitFor: []*Replica{one()}, MatchedTokens: -v.IntN(1 << 40)}
	default:
		return To(one(), "whatever")
	}
}

// call is one call in the model: it waits, or holds a booking, or has ended.
type call struct {
	q       *Request
	b       *Booking
	w       *waiter
	id      string // of the replica booked
	charged int
	ended   bool
}

func (c *call) waiting() bool { return c.w != nil && c.w.waiting }

// model is the naive twin of a Router.
type model struct {
	t     *testing.T
	rnd   *rand.Rand
	r     *Router
	bound int
	// fleet and connected say what the Router was told.
	fleet     []Member
	connected map[string]bool
	live      []*call        // waiting or booked
	booked    map[string]int // bookings made in this step
}

func newModel(t *testing.T, seed uint64, p Policy) *model {
	m := &model{
		t: t, rnd: rand.New(rand.NewPCG(seed, 7)), connected: map[string]bool{},
		bound: 3 + int(seed)*3,
	}
	r, err := NewRouter(Options{
		Policy: p, MaxOngoing: 2, MaxQueued: m.bound, Node: "n0", Zone: "z0",
		Now: ticking(), Rand: rand.New(rand.NewPCG(seed, 11)),
	})
	require.NoError(t, err)
	m.r = r
	if seed%2 == 0 {
		// An empty View has no mean; ask for it once there is one.
		r.shared.slow.Or(sumWanted)
	}
	return m
}

func (m *model) chance(percent int) bool { return m.rnd.IntN(100) < percent }

func (m *model) someID() string { return fmt.Sprintf("r%d", m.rnd.IntN(8)) }

func (m *model) step() {
	m.booked = map[string]int{}
	switch n := m.rnd.IntN(100); {
	case n < 40:
		m.arrive(m.request())
	case n < 65:
		m.end()
	case n < 72:
		if c := m.one((*call).holds); c != nil {
			c.b.PrefillDone()
			c.b.PrefillDone()
			c.charged = 0
		}
	case n < 78:
		m.retry()
	case n < 82:
		if c := m.one((*call).waiting); c != nil {
			m.cancel(c)
		}
	case n < 90:
		m.change()
	case n < 99:
		id := m.someID()
		up := m.chance(75)
		m.r.SetConnected(id, up)
		if m.find(id) != nil {
			m.connected[id] = up
		}
	default:
		m.r.Disconnect()
		clear(m.connected)
	}
	m.collect()
	m.check()
}

func (m *model) request() *Request {
	q := &Request{Session: "sessions"[:m.rnd.IntN(8)], PromptTokens: m.rnd.IntN(5000)}
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
	if m.chance(25) {
		q.Adapter = []string{"x", "y"}[m.rnd.IntN(2)]
	}
	return q
}

// arrive lets a request pick, or wait if it must and likes to.
func (m *model) arrive(q *Request) {
	c := &call{q: q, b: new(Booking)}
	waits := m.chance(80)
	before := m.queued()
	var err error
	if waits {
		c.w, err = m.r.pickOrEnqueue(m.t.Context(), q, c.b)
	} else {
		err = m.r.Pick(m.t.Context(), q, c.b)
	}
	want, roomLeft := m.mayServe(q)
	switch {
	case want != nil:
		require.Equal(m.t, want, err)
	case err == nil && c.w == nil:
		m.book(c)
	case err == nil:
		m.live = append(m.live, c)
	case waits:
		require.Equal(m.t, ErrQueueFull, err)
		require.Equal(m.t, m.bound, before)
	default:
		require.Equal(m.t, ErrFull, err)
		if c.b.Decision.WaitFor == nil {
			require.False(m.t, roomLeft, "full although somebody has room")
		}
	}
	require.Equal(m.t, err == nil && c.w == nil, c.b.Held())
}

// mayServe says which error a request must get at once, and whether anybody
// that may serve it has room.
func (m *model) mayServe(q *Request) (err error, roomLeft bool) {
	up, may, mayUp := 0, 0, 0
	for _, mem := range m.fleet {
		if m.connected[mem.ID] {
			up++
		}
		if !m.allowed(q, mem) {
			continue
		}
		may++
		if m.connected[mem.ID] {
			mayUp++
			roomLeft = roomLeft || m.count(mem.ID) < m.capacity(mem)
		}
	}
	switch {
	case up == 0:
		return ErrNotConnected, false
	case may == 0:
		return ErrNoSuchReplica, false
	case mayUp == 0:
		return ErrNotConnected, false
	}
	return nil, roomLeft
}

func (m *model) allowed(q *Request, mem Member) bool {
	if mem.Draining || slices.Contains(q.Exclude, mem.ID) {
		return false
	}
	if q.Pin != "" {
		return q.Pin == mem.ID
	}
	declared := slices.ContainsFunc(m.fleet, func(o Member) bool { return slices.Contains(o.Models, q.Model) })
	return !declared || len(mem.Models) == 0 || slices.Contains(mem.Models, q.Model)
}

func (m *model) capacity(mem Member) int {
	switch {
	case mem.MaxOngoing == 0:
		return 2
	case mem.MaxOngoing < 0:
		return 1 << 30
	}
	return mem.MaxOngoing
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

// book notes a call that has just got a booking, and checks the pick.
func (m *model) book(c *call) {
	d := c.b.Decision
	c.w, c.id = nil, d.Replica.ID
	c.charged = min(max(c.q.PromptTokens-d.MatchedTokens, 0), maxPrefill)
	m.booked[c.id]++
	if !slices.Contains(m.live, c) {
		m.live = append(m.live, c)
	}
	mem := m.find(c.id)
	require.NotNil(m.t, mem, "picked a replica that has left")
	require.Same(m.t, m.r.View().ByID(c.id), d.Replica, "picked a stale replica")
	require.True(m.t, m.connected[c.id], "picked a replica that is not connected")
	require.True(m.t, m.allowed(c.q, *mem), "picked a replica that the request must not use")
	if c.q.attempt > 0 && d.Reason != ReasonQueued {
		require.Equal(m.t, ReasonRetry, d.Reason)
	}
	require.NotContains(m.t, []Reason{ReasonRetry, ReasonQueued}, d.Rule)
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
	c.q.NextAttempt(c.b.Decision.Replica)
	m.arrive(c.q)
}

func (m *model) cancel(c *call) {
	ctx, cancel := context.WithCancel(m.t.Context())
	cancel()
	served := !c.w.waiting
	err := m.r.abandon(ctx, c.w)
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
	told := slices.Clone(next)
	if len(next) > 0 && m.chance(10) {
		twin := next[0]
		twin.MaxOngoing = 100
		told = append(told, twin) // the first counts
	}
	before := m.r.View()
	m.r.SetFleet(told)
	for id := range m.connected {
		if m.find(id) == nil {
			delete(m.connected, id)
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

// collect notes what the step did to those who waited. Some of those served give
// up in that same moment, which may serve others.
func (m *model) collect() {
	for again := true; again; {
		again = false
		for _, c := range slices.Clone(m.live) {
			if c.w == nil || c.w.waiting {
				continue
			}
			again = true
			if c.w.err != nil {
				want, _ := m.mayServe(c.q)
				require.Equal(m.t, want, c.w.err, "sent away for no reason")
				m.forget(c)
				continue
			}
			w := c.w
			require.Equal(m.t, ReasonQueued, c.b.Decision.Reason)
			require.Positive(m.t, c.b.Decision.Queued)
			m.book(c)
			m.notOvertaking(c, w)
			if m.chance(15) {
				c.w = w
				m.cancel(c)
			}
		}
	}
}

// notOvertaking checks that nobody who came before a waiter that was served
// still waits for the same replica.
func (m *model) notOvertaking(served *call, w *waiter) {
	for _, c := range m.live {
		if c.waiting() && c.w.seq < w.seq {
			require.NotContains(m.t, m.wants(c), served.id, "overtook")
		}
	}
}

// wants lists the replicas that a waiting call would take.
func (m *model) wants(c *call) (ids []string) {
	if c.b.Decision.WaitFor != nil {
		for _, r := range c.b.Decision.WaitFor {
			require.Same(m.t, m.r.View().ByID(r.ID), r, "waits for a stale replica")
			ids = append(ids, r.ID)
		}
		return ids
	}
	for _, mem := range m.fleet {
		if m.connected[mem.ID] && m.allowed(c.q, mem) {
			ids = append(ids, mem.ID)
		}
	}
	return ids
}

func (m *model) check() {
	t, r, v := m.t, m.r, m.r.View()
	tokens, bookings := map[string]int{}, map[string]int{}
	for _, c := range m.live {
		if c.holds() {
			bookings[c.id]++
			tokens[c.id] += c.charged
		}
	}
	require.Len(t, v.Replicas(), len(m.fleet))
	var load float64
	up := 0
	for i, mem := range m.fleet {
		rep := v.Replicas()[i]
		require.Equal(t, mem.ID, rep.ID)
		require.Equal(t, i, rep.Index())
		require.Equal(t, m.connected[mem.ID], rep.Connected(), mem.ID)
		require.Equal(t, bookings[mem.ID], rep.Ongoing(), mem.ID)
		require.Equal(t, tokens[mem.ID], rep.QueuedTokens(), mem.ID)
		if m.booked[mem.ID] > 0 {
			require.LessOrEqual(t, rep.Ongoing(), m.capacity(mem), "booked beyond max_ongoing")
		}
		if rep.Connected() {
			require.Same(t, rep, v.Connected()[up])
			up++
			weight := mem.Weight
			if weight == 0 {
				weight = 1
			}
			load += (float64(tokens[mem.ID]) + DefaultRequestCost*float64(bookings[mem.ID])) / weight
		}
	}
	require.Len(t, v.Connected(), up)
	if up > 0 {
		require.InDelta(t, load/float64(up), v.MeanLoad(), 0.01*float64(up))
	}
	if r.shared.sumKept.Load() {
		require.Equal(t, v.sumLoads(), r.shared.loadSum.Load(), "the sum drifted")
	}

	for id, l := range r.departed {
		require.Nil(t, m.find(id), "departed and in the fleet")
		require.Positive(t, bookings[id])
		require.EqualValues(t, bookings[id], l.book.Load()>>tokenBits)
	}
	for id := range bookings {
		if m.find(id) == nil {
			require.Contains(t, r.departed, id)
		}
	}

	require.Equal(t, m.queued(), r.Queued())
	require.LessOrEqual(t, r.Queued(), m.bound)
	for _, c := range m.live {
		if !c.waiting() {
			continue
		}
		wants := m.wants(c)
		require.NotEmpty(t, wants, "waits for nobody")
		for _, id := range wants {
			mem := m.find(id)
			require.True(t, m.connected[id] && m.allowed(c.q, *mem), "waits for what can never serve it")
			require.GreaterOrEqual(t, bookings[id], m.capacity(*mem), "waits although there is room on %s", id)
		}
		require.Len(t, c.w.places, max(1, len(c.b.Decision.WaitFor)))
		for _, p := range c.w.places {
			if next := p.at.Next(); next != nil {
				require.LessOrEqual(t, c.w.seq, next.Value.(*waiter).seq, "the queue is out of order")
			}
		}
	}
}

// finish ends everything, the waiters as they are served.
func (m *model) finish() {
	for len(m.live) > 0 {
		m.booked = map[string]int{}
		before := len(m.live)
		m.end()
		if c := m.one((*call).waiting); c != nil && len(m.live) == before {
			m.cancel(c)
		}
		m.collect()
		m.check()
	}
	for _, rep := range m.r.View().Replicas() {
		require.Zero(m.t, rep.Ongoing())
		require.Zero(m.t, rep.QueuedTokens())
		require.Zero(m.t, rep.live.waiters.Len())
	}
	require.Zero(m.t, m.r.Queued())
	require.Zero(m.t, m.r.anyone.Len())
	require.Empty(m.t, m.r.departed)
	require.Empty(m.t, m.r.leaving)
	require.NoError(m.t, m.r.Close())
}
