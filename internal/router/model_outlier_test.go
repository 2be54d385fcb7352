package router

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

var outlierSeeds = flag.Uint64("routing.outlier-seeds", 4, "how many seeds TestModelOutlier runs")

// TestModelOutlier drives a Router whose replicas fail, hang, drain, restart, leave and come back, on a clock that
// jumps forward and back, with outlier reports of peers. After every step it checks that the health of each
// replica is right and obeyed. A failure names the seed; replay it with
//
//	go test ./internal/router -run 'TestModelOutlier/POLICY' -routing.seed SEED
func TestModelOutlier(t *testing.T) {
	for name, p := range map[string]func() policy.Policy{
		"least_loaded": func() policy.Policy { return loading(leastLoaded) },
		"least_of_two": func() policy.Policy { return choosing(leastOfTwo) },
		"by_session":   bySession,
		"capricious":   func() policy.Policy { return choosing(capricious) },
		"hostile":      newHostile,
	} {
		t.Run(name, func(t *testing.T) {
			first, last := *modelSeed, *modelSeed
			if first == 0 {
				first, last = 1, *outlierSeeds
			}
			for seed := first; seed <= last; seed++ {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					t.Cleanup(func() {
						if t.Failed() {
							t.Logf("replay with -run 'TestModelOutlier/%s' -routing.seed %d", name, seed)
						}
					})
					m := newHealthModel(t, seed, p())
					for range *modelSteps {
						m.step()
						m.check()
					}
					m.finish()
				})
			}
		})
	}
}

// healthCall is a call in the model: it waits in the queue, holds a reservation, or has ended.
type healthCall struct {
	q *policy.Request
	b *Reservation
	w *waiter
}

func (p *healthCall) holds() bool { return p.w == nil }

// healthModel is a naive model of a Router's outlier detection.
type healthModel struct {
	*testing.T
	r     *Router
	rnd   *rand.Rand
	now   time.Time
	fleet []Member
	calls []*healthCall
	homes map[string]*live // where a session went last
}

// Helper implements testing.TB: that of testing.T looks up its caller, which took more than half of the test's
// time.
func (*healthModel) Helper() {}

func newHealthModel(t *testing.T, seed uint64, p policy.Policy) *healthModel {
	m := &healthModel{T: t, rnd: rand.New(rand.NewPCG(seed, 3)), now: time.Unix(1e6, 0), homes: map[string]*live{}}
	r, err := NewRouter(Options{
		Policy: p, MaxOngoing: 3, Now: func() time.Time { return m.now }, AfterFunc: never, Rand: rand.New(rand.NewPCG(seed, 5)),
		Ejection:   &policy.Ejection{Failures: 3, LateMin: policy.Duration(time.Second), SlowStart: policy.Duration(20 * time.Second)},
		DrainGrace: 15 * time.Second,
	})
	require.NoError(t, err)
	m.r, m.fleet = r, members(2+int(seed)%7)
	r.Fleet.Set(m.fleet)
	connectAll(r)
	return m
}

func (m *healthModel) chance(percent int) bool { return m.rnd.IntN(100) < percent }

func (m *healthModel) some() string { return fmt.Sprintf("r%d", m.rnd.IntN(8)) }

// faults returns whether a replica fails, and whether it hangs, at this time.
func (m *healthModel) faults(id string) (fails, hangs bool) {
	phase := m.now.Unix() / 60
	return phase%5 == int64(id[1]-'0')%5, phase%7 == int64(id[1]-'0')%7
}

func (m *healthModel) step() {
	m.now = m.now.Add(time.Duration(m.rnd.IntN(300)) * time.Millisecond)
	switch n := m.rnd.IntN(200); {
	case n < 80:
		m.arrive()
	case n < 165:
		m.end()
	case n < 168:
		m.r.Health.Look()
	case n < 172:
		m.now = m.now.Add(time.Duration(m.rnd.IntN(90)) * time.Second)
	case n < 173:
		m.now = m.now.Add(-time.Duration(m.rnd.IntN(90)) * time.Second)
	case n < 183:
		m.r.Fleet.SetConnected(m.some(), m.chance(80))
	case n < 185:
		m.r.Fleet.Drain(m.some())
	case n < 192:
		m.change()
	case n < 194:
		m.each(func(d *outlier.Detector, _ *outlier.Replica) { d.Inherit() })
	case n < 197:
		m.each(func(d *outlier.Detector, rep *outlier.Replica) {
			server := map[*outlier.Replica]outlier.State{rep: []outlier.State{outlier.HalfOpen, outlier.Ejected}[m.rnd.IntN(2)]}
			if m.chance(30) {
				clear(server)
			}
			d.Follow(server)
			d.Take(rep)
		})
	default:
		m.each(func(d *outlier.Detector, rep *outlier.Replica) {
			c := outlier.Counts{Successes: m.rnd.IntN(2), Failures: m.rnd.IntN(3), Late: m.rnd.IntN(3)}
			d.Add(rep, fmt.Sprint("client ", m.rnd.IntN(3)), c, m.chance(30))
		})
	}
	m.collect()
}

// each does something with the outlier detection of some replicas.
func (m *healthModel) each(do func(*outlier.Detector, *outlier.Replica)) {
	for range m.rnd.IntN(4) {
		if rep := m.r.View().ByID(m.some()); rep != nil {
			do(m.r.Outliers(), m.r.Outlier(rep))
		}
	}
	m.r.Health.Sync()
}

func (m *healthModel) change() {
	var next []Member
	for _, mem := range m.fleet {
		if m.chance(8) {
			continue
		}
		if m.chance(10) {
			mem.Draining = !mem.Draining
		}
		if m.chance(10) {
			mem.Instance = fmt.Sprint(m.rnd.IntN(3))
		}
		next = append(next, mem)
	}
	if id := m.some(); !slices.ContainsFunc(next, func(o Member) bool { return o.ID == id }) {
		next = append(next, member(id))
	}
	m.fleet = next
	m.r.Fleet.Set(next)
}

func (m *healthModel) arrive() {
	p := &healthCall{q: answering(state.Answer(m.rnd.IntN(3)), policy.Request{Session: "sessions"[:m.rnd.IntN(8)], PromptTokens: m.rnd.IntN(3000)}), b: new(Reservation)}
	if m.chance(15) {
		p.q.Exclude = []string{m.some(), m.some(), m.some()}
	}
	if m.chance(10) {
		p.q.Pin = m.some()
	}
	var err error
	p.w, err = pickOrEnqueue(m.r, m.Context(), p.q, p.b)
	if err != nil {
		for _, rep := range m.r.View().Connected() {
			require.False(m, m.may(p.q, rep), "refused although %s may serve it: %v", rep.ID, err)
		}
		return
	}
	m.calls = append(m.calls, p)
	if p.holds() {
		m.picked(p)
	}
}

// may reports whether a replica may serve the request at all, whatever its health and its room.
func (m *healthModel) may(q *policy.Request, rep *policy.Replica) bool {
	return rep.Connected() && (!rep.Drains() || part.OfRequest(q).Keeper == part.OfReplica(rep) && q.Pin == "" || q.Pin != "" && !rep.Draining) && !excluded(q, part.OfRequest(q), rep) && (q.Pin == "" || q.Pin == rep.ID)
}

// picked checks a pick, just after it was made.
func (m *healthModel) picked(p *healthCall) {
	rep := p.b.Decision.Replica
	state, _ := m.r.Outliers().State(m.r.Outlier(rep))
	if !m.may(p.q, rep) {
		require.True(m, rep.Drains() && !rep.Draining && rep.Connected() && !excluded(p.q, part.OfRequest(p.q), rep))
		for _, other := range m.r.View().Connected() {
			require.False(m, m.may(p.q, other) && !m.out(other), "%s drains, and %s does not", rep.ID, other.ID)
		}
		m.settle(p)
		return
	}
	if rep.Drains() && p.q.Pin == "" {
		require.Same(m, m.homes[p.q.Session], liveOf(rep), "a new session on a draining replica")
		require.Less(m, m.now.Sub(liveOf(rep).drains), 15*time.Second)
	}
	require.Equal(m, state >= outlier.HalfOpen, p.b.Decision.Probe())
	if p.q.Pin == "" && state == outlier.Ejected {
		for _, other := range m.r.View().Connected() {
			require.False(m, !m.out(other) && m.may(p.q, other), "%s is ejected, and %s is not", rep.ID, other.ID)
		}
	}
	m.settle(p)
}

// out reports whether a replica is ejected, or gets its probe.
func (m *healthModel) out(rep *policy.Replica) bool {
	s, _ := m.r.Outliers().State(m.r.Outlier(rep))
	return s >= outlier.HalfOpen
}

// settle records where the session of a call is now: on the replica that took it last, even if only for want of a
// better one.
func (m *healthModel) settle(p *healthCall) {
	if p.q.Session != "" {
		m.homes[p.q.Session] = liveOf(p.b.Decision.Replica)
	}
}

// collect records what became of the waiters.
func (m *healthModel) collect() {
	m.calls = slices.DeleteFunc(m.calls, func(p *healthCall) bool {
		if p.w == nil || p.w.waiting {
			return false
		}
		if p.w.err != nil {
			return true
		}
		require.NoError(m, Ticket{m.r, p.w}.Take())
		p.w = nil
		m.settle(p)
		return false
	})
}

// end lets a call end or be answered, as its replica does now.
func (m *healthModel) end() {
	if len(m.calls) == 0 {
		return
	}
	i := m.rnd.IntN(len(m.calls))
	p := m.calls[i]
	if !p.holds() {
		return
	}
	o := policy.Outcome{Sent: true, Usage: policy.NoUsage}
	fails, hangs := m.faults(p.b.Decision.Replica.ID)
	switch {
	case hangs && m.chance(70):
		return
	case hangs:
		o.Err, o.Fault = errFault, []policy.Fault{policy.TimedOut, policy.GivenUp, policy.Late}[m.rnd.IntN(3)]
	case fails:
		o.Err, o.Fault = errFault, policy.Failed
	case m.chance(5):
		o.Err = errFault
	default:
		o.FirstMessage = p.b.Answered()
		if m.chance(50) {
			p.b.Answered()
			return
		}
	}
	m.calls = slices.Delete(m.calls, i, i+1)
	p.b.Release()
	p.b.Release()
	m.r.Complete(p.q, p.b.Decision, o)
}

func (m *healthModel) check() {
	r, v := m.r, m.r.View()
	for _, rep := range v.Replicas() {
		state, cause := r.Outliers().State(r.Outlier(rep))
		require.Equal(m, state >= outlier.HalfOpen, cause != outlier.NoCause, rep.ID)
		room := rep.Connected() && !rep.Full() && !rep.Drains()
		switch free := v.Available(new(policy.Request), rep); state {
		case outlier.Healthy:
			require.Equal(m, room, free, rep.ID)
		case outlier.Ejected:
			require.False(m, free, rep.ID)
		default:
			require.False(m, free && !room, rep.ID)
		}
		if rep.Drains() {
			require.False(m, liveOf(rep).drains.IsZero())
		}
	}
	for _, p := range m.calls {
		if p.holds() {
			continue
		}
		for _, rep := range v.Connected() { // the grace of a draining replica may be over
			free := m.may(p.q, rep) && !rep.Drains() && v.Available(new(policy.Request), rep)
			if want := p.b.Decision.WaitFor; want == nil || slices.Contains(want, rep) {
				state, _ := r.Outliers().State(r.Outlier(rep))
				require.False(m, free && state == outlier.Healthy, "waits although there is room on %s", rep.ID)
			}
		}
	}
}

// finish lets all replicas recover: in the end all are healthy, whatever happened before.
func (m *healthModel) finish() {
	m.r.Outliers().Follow(nil)
	for i := range m.fleet {
		m.fleet[i].Draining = false
	}
	m.r.Fleet.Set(m.fleet)
	connectAll(m.r)
	for len(m.calls) > 0 {
		m.collect()
		for _, p := range m.calls {
			if p.holds() {
				p.b.Release()
			}
		}
		m.calls = slices.DeleteFunc(m.calls, (*healthCall).holds)
	}
	for range 3 {
		m.now = m.now.Add(10 * time.Minute)
		for _, rep := range m.r.View().Replicas() {
			m.r.Fleet.SetConnected(rep.ID, false)
			m.r.Fleet.SetConnected(rep.ID, true)
			q := answering(state.AnswerMessage, policy.Request{Pin: rep.ID})
			m.r.Health.Look()
			b := pick(m, m.r, q)
			took := b.Answered()
			b.Release()
			m.r.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: took, Usage: policy.NoUsage})
		}
	}
	m.r.Health.Look()
	m.check()
	for _, rep := range m.r.View().Replicas() {
		s, _ := m.r.Outliers().State(m.r.Outlier(rep))
		require.Equal(m, outlier.Healthy, s, rep.ID)
	}
	require.NoError(m, m.r.Close())
}
