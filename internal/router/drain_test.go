package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// bySession is a policy with an order for each session; it waits for the first.
func bySession() policy.Policy {
	return policy.Policy{Uses: policy.UsesSession, Choose: chooseBySession}
}

func chooseBySession(q *policy.Request, v policy.View) policy.Decision {
	var want []*policy.Replica
	all := v.Replicas()
	for i := range all {
		r := all[(len(q.Session)+i)%len(all)]
		switch {
		case !r.Connected() || !v.Allowed(q, r):
		case r.Full():
			want = append(want, r)
		default:
			return policy.To(r, policy.ReasonRing)
		}
	}
	return policy.Wait(want...)
}

func drainingFleet(t *testing.T, grace time.Duration) *harness {
	return newHarness(t, 3, func(o *Options) {
		o.Policy, o.DrainGrace, o.MaxOngoing = bySession(), grace, 2
	})
}

func (w *harness) session(s string) string {
	b := pick(w.t, w.Router, &policy.Request{Session: s})
	b.Release()
	return b.Decision.Replica.ID
}

func (w *harness) drain(i int) {
	ms := members(3)
	ms[i].Draining = true
	w.Fleet.Set(ms)
}

func TestDrainingReplicaKeepsItsSessions(t *testing.T) {
	w := drainingFleet(t, 10*time.Second)
	require.Equal(t, "r1", w.session("a"))
	require.Equal(t, "r2", w.session("aa"))
	w.drain(1)
	for range 3 {
		require.Equal(t, "r1", w.session("a"), "a known session stays")
		require.Equal(t, "r2", w.session("b"), "a new session goes to the first open replica of its order")
		require.Equal(t, "r2", w.session("aa"))
		w.pass(3 * time.Second)
	}
	w.pass(time.Second)
	require.Equal(t, "r2", w.session("a"), "the grace is over")
	w.drain(0)
	require.Equal(t, "r1", w.session("a"), "the replica no longer drains")
	require.Equal(t, "r1", w.session("b"))
	require.ErrorIs(t, w.Reserve(t.Context(), &policy.Request{Pin: "r0"}, new(Reservation), How{NoWait: true}), ErrNoSuchReplica)
}

// The end of a session removes its entry, and no other session's.
func TestSessionEnds(t *testing.T) {
	w := drainingFleet(t, 10*time.Second)
	final := func(session string) string {
		q := policy.Request{Session: session}
		part.OfRequest(&q).Final = true
		b := pick(w.t, w.Router, &q)
		b.Release()
		return b.Decision.Replica.ID
	}
	for _, s := range []string{"a", "b", "c"} {
		require.Equal(t, "r1", w.session(s))
	}
	w.drain(1)
	require.Equal(t, "r1", final("b"), "the last request still goes to the same replica")
	w.Fleet.Forget(state.SessionHash("c"))
	w.Fleet.Forget(state.SessionHash("never seen"))
	w.Fleet.Forget(0)
	require.Equal(t, []string{"r1", "r2", "r2"}, []string{w.session("a"), w.session("b"), w.session("c")})
}

func TestNoGrace(t *testing.T) {
	w := drainingFleet(t, 0)
	require.Equal(t, "r1", w.session("a"))
	w.drain(1)
	require.Equal(t, "r2", w.session("a"))
}

// A drain that the replica reports counts like its attribute, until the replica reconnects.
func TestReplicaDrains(t *testing.T) {
	w := drainingFleet(t, 10*time.Second)
	require.Equal(t, "r1", w.session("a"))
	w.Fleet.Drain("unknown")
	w.Fleet.Drain("r1")
	w.Report("r1", load.Report{Ongoing: -1, QueuedTokens: -1, Draining: true})
	require.True(t, w.View().ByID("r1").Drains())
	require.Equal(t, "r1", w.session("a"))
	require.Equal(t, "r2", w.session("b"))
	w.Fleet.SetConnected("r0", false)
	w.Fleet.SetConnected("r2", false)
	require.Equal(t, "r1", w.session("b"), "no other replica is connected")
	pick(t, w.Router, &policy.Request{Pin: "r1"}).Release()
	connectAll(w.Router)
	require.Equal(t, "r2", w.session("bb"))
	w.Fleet.SetConnected("r1", false)
	w.Fleet.SetConnected("r1", true)
	require.Equal(t, "r1", w.session("c"))
}

// A request whose only eligible replica reports that it drains waits for that replica. It does not delay a request
// that any other replica may serve.
func TestWaitForTheLastResort(t *testing.T) {
	w := newHarness(t, 2, func(o *Options) { o.MaxOngoing = 1 })
	_, leaving := w.send("r0")
	_, stays := w.send("r1")
	w.Fleet.Drain("r0")
	only := enqueue(t, w.Router, &policy.Request{Exclude: []string{"r1"}})
	any := enqueue(t, w.Router, new(policy.Request))
	require.Equal(t, []*policy.Replica{w.View().ByID("r0")}, only.b.Decision.WaitFor)
	stays.Release()
	require.False(t, any.waiting)
	require.Equal(t, "r1", any.b.Decision.Replica.ID)
	leaving.Release()
	require.False(t, only.waiting)
	require.Equal(t, "r0", only.b.Decision.Replica.ID)
}

// A session waits in the queue for the draining replica that keeps it. No other request waits for that replica.
func TestWaitForTheDraining(t *testing.T) {
	w := drainingFleet(t, 10*time.Second)
	w.session("a")
	var reserved []*Reservation
	for i := range 6 { // all are full
		reserved = append(reserved, pick(t, w.Router, &policy.Request{Session: fmt.Sprintf("%0*d", 1+i%3, 7)}))
	}
	w.drain(1)
	own := enqueue(t, w.Router, &policy.Request{Session: "a"})
	other := enqueue(t, w.Router, &policy.Request{Session: "b"})
	require.Len(t, own.b.Decision.WaitFor, 3)
	require.Len(t, other.b.Decision.WaitFor, 2)
	for _, b := range reserved {
		if b.Decision.Replica.ID == "r1" {
			b.Release()
		}
	}
	require.False(t, own.waiting)
	require.Equal(t, "r1", own.b.Decision.Replica.ID)
	require.True(t, other.waiting)
	reserved[1].Release()
	reserved[4].Release()
	require.False(t, other.waiting)
	require.Equal(t, "r2", other.b.Decision.Replica.ID)
}

// The table is of fixed size: sessions displace each other, and no session gets the entry of another.
func TestSessionTableIsBounded(t *testing.T) {
	s := new(sessions)
	l, sessionSlots := &live{number: 7}, len(s)
	at := func(session string) uint64 {
		hash := state.SessionHash(session)
		return s.slot(hash).Load() ^ hash
	}
	for i := range 10 * sessionSlots {
		s.note(&policy.Request{Session: fmt.Sprint("session ", i)}, l)
	}
	known := 0
	for i := range 10 * sessionSlots {
		if at(fmt.Sprint("session ", i)) == 7 {
			known++
		}
	}
	require.LessOrEqual(t, known, sessionSlots)
	require.Greater(t, known, sessionSlots/2)
	require.NotEqualValues(t, 7, at("never seen"))
	q := policy.Request{Session: "session"}
	require.Zero(t, testing.AllocsPerRun(100, func() { s.note(&q, l) }))
}

// memory is a policy that holds something for every replica until it leaves.
type memory map[string]int

func (m memory) policy() policy.Policy {
	p := choosing(firstFree)
	p.Observer.FleetChanged = func(c policy.FleetChange) {
		for _, r := range c.Removed {
			delete(m, r.ID)
		}
		for _, r := range c.Added {
			m[r.ID]++
		}
	}
	return p
}

// What the policy holds for a replica's cache ends when the replica restarts, and not with its connection.
func TestRestartClearsWhatIsHeld(t *testing.T) {
	m := memory{}
	r := connected(t, Options{Policy: m.policy()}, members(2)...)
	ms := members(2)
	set := func(instance string) {
		m["r0"] = 10
		ms[0].Instance = instance
		r.Fleet.Set(ms)
	}
	set("a")
	require.Equal(t, 10, m["r0"])
	b := pick(t, r, new(policy.Request))
	r.Fleet.SetConnected("r0", false)
	r.Fleet.SetConnected("r0", true)
	require.Equal(t, 10, m["r0"], "a short loss of the connection")
	set("b")
	require.Equal(t, memory{"r0": 1, "r1": 1}, m)
	require.True(t, r.View().ByID("r0").Connected())
	require.Equal(t, 1, r.View().ByID("r0").Ongoing())
	b.Release()
	require.Zero(t, r.View().ByID("r0").Ongoing())
	set("")
	require.Equal(t, 10, m["r0"])
}

// A replica that drains again, after its connection was down or its attributes changed, keeps its sessions for as
// long as the first time.
func TestGraceBeginsWithEachDrain(t *testing.T) {
	w := drainingFleet(t, 10*time.Second)
	for _, again := range []func(){
		func() {
			w.Fleet.SetConnected("r1", false)
			w.Fleet.SetConnected("r1", true)
			w.Fleet.Drain("r1")
		},
		func() {
			w.Fleet.SetConnected("r1", false)
			w.Fleet.SetConnected("r1", true)
			w.drain(1)
		},
		func() {
			w.Fleet.Set(members(3))
			w.drain(1)
		},
	} {
		w.Fleet.Set(members(3))
		require.Equal(t, "r1", w.session("a"))
		w.Fleet.Drain("r1")
		w.pass(time.Minute)
		require.Equal(t, "r2", w.session("a"), "the grace is over")
		w.Fleet.SetConnected("r1", false)
		w.Fleet.SetConnected("r1", true)
		require.Equal(t, "r1", w.session("a"))
		again()
		require.Equal(t, "r1", w.session("a"), "the grace begins again")
		w.pass(time.Minute)
		require.Equal(t, "r2", w.session("a"))
		w.Fleet.SetConnected("r1", false)
		w.Fleet.SetConnected("r1", true)
	}
}
