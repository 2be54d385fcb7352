package routing

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var errFault = errors.New("the replica failed")

// ward is a Router whose replicas are judged, on a clock of its own.
type ward struct {
	*Router
	t   *testing.T
	now time.Time
}

// never is a timer on a clock that only the test moves.
func never(time.Duration, func()) func() { return func() {} }

func newWard(t *testing.T, n int, set ...func(*Options)) *ward {
	w := &ward{t: t, now: time.Unix(1000, 0)}
	o := Options{Policy: choosing(leastOfTwo), Ejection: DefaultEjection(), Now: func() time.Time { return w.now }, AfterFunc: never}
	for _, f := range set {
		f(&o)
	}
	w.Router = connected(t, o, members(n)...)
	return w
}

func (w *ward) pass(d time.Duration) { w.now = w.now.Add(d) }

// send picks, on this replica if one is named.
func (w *ward) send(on string) (*Request, *Booking) {
	q := &Request{Answer: AnswerMessage, Pin: on}
	return q, pick(w.t, w.Router, q)
}

// fail lets one call on a replica fail.
func (w *ward) fail(on string) { w.end(on, Outcome{Err: errFault, Sent: true, Fault: Failed}) }

func (w *ward) end(on string, o Outcome) {
	q, b := w.send(on)
	o.Usage = NoUsage
	b.Release()
	w.Complete(q, b.Decision, o)
}

// serve lets one call be answered after a while.
func (w *ward) serve(on string, took time.Duration) {
	q, b := w.send(on)
	w.pass(took)
	w.finish(q, b)
}

func (w *ward) finish(q *Request, b *Booking) {
	took := b.Answered()
	b.Release()
	w.Complete(q, b.Decision, Outcome{Sent: true, FirstMessage: took, Usage: NoUsage})
}

func (w *ward) condition(id string) Condition {
	c, _ := w.Condition(w.View().ByID(id))
	return c
}

// picked counts where so many requests go that are answered at once.
func (w *ward) picked(n int) map[string]int {
	counts := map[string]int{}
	for range n {
		q, b := w.send("")
		counts[b.Decision.Replica.ID]++
		w.finish(q, b)
	}
	return counts
}

func TestEjectAfterFailuresInARow(t *testing.T) {
	w := newWard(t, 4)
	for range 4 {
		w.fail("r0")
	}
	w.serve("r0", time.Second)
	for range 4 {
		w.fail("r0")
	}
	require.Equal(t, Well, w.condition("r0"), "an answer in between ends what stood against it")
	w.fail("r0")
	require.Equal(t, Ejected, w.condition("r0"))
	_, cause := w.Condition(w.View().ByID("r0"))
	require.Equal(t, CauseFault, cause)
	require.Zero(t, w.picked(200)["r0"])
	require.EqualValues(t, 1, w.Health().Ejections[CauseFault])
}

// What is not the replica's fault says nothing.
func TestOutcomesThatEjectNobody(t *testing.T) {
	for name, o := range map[string]Outcome{
		"its own status": {Err: errFault, Sent: true},
		"not sent":       {Err: errFault, Fault: Failed},
		"cancelled":      {Err: errFault, Sent: true, Fault: GivenUp},
		"a deadline, while nothing is known of how long it takes": {Err: errFault, Sent: true, Fault: TimedOut},
		"after the first message":                                 {Err: errFault, Sent: true, Fault: Failed, FirstMessage: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, 4)
			for range 50 {
				w.end("r0", o)
			}
			require.Equal(t, Well, w.condition("r0"))
		})
	}
}

// A replica that is ejected comes back by a trial: one request at a time, then slowly. Each ejection is longer.
func TestTrial(t *testing.T) {
	w := newWard(t, 4)
	eject := func() {
		for range 5 {
			w.fail("r0")
		}
		require.Equal(t, Ejected, w.condition("r0"))
	}
	eject()
	length := 10 * time.Second
	for range 3 { // its trial fails
		w.pass(length - time.Millisecond)
		require.Zero(t, w.picked(50)["r0"])
		w.pass(round)
		q, b := w.trial("r0")
		require.Zero(t, w.picked(100)["r0"], "one at a time")
		b.Release()
		w.Complete(q, b.Decision, Outcome{Err: errFault, Sent: true, Fault: Failed, Usage: NoUsage})
		require.Equal(t, Ejected, w.condition("r0"))
		length *= 2
	}
	w.pass(length + round)
	q, b := w.trial("r0") // says nothing
	b.Release()
	w.Complete(q, b.Decision, Outcome{Err: errFault, Sent: true, Fault: GivenUp, Usage: NoUsage})
	q, b = w.trial("r0")
	w.finish(q, b)
	require.Equal(t, Warming, w.condition("r0"))
	w.pass(30 * time.Second)
	w.picked(1)
	require.Equal(t, Well, w.condition("r0"))
	h := w.Health()
	require.EqualValues(t, 3, h.Ejections[CauseTrial])
	require.EqualValues(t, 5, h.Trials)
}

// trial picks until a replica on trial is given a request.
func (w *ward) trial(id string) (*Request, *Booking) {
	for range 500 {
		q, b := w.send("")
		if b.Decision.Replica.ID == id {
			return q, b
		}
		w.finish(q, b)
	}
	w.t.Fatalf("%s is not tried", id)
	return nil, nil
}

func TestShareOfTheFleet(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 3: 1, 6: 1, 7: 2, 10: 3, 20: 6} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWard(t, n)
			for i := range n {
				for range 10 {
					w.fail(fmt.Sprintf("r%d", i))
				}
			}
			out := 0
			for i := range n {
				if w.condition(fmt.Sprintf("r%d", i)) == Ejected {
					out++
				}
			}
			require.Equal(t, most, out)
		})
	}
}

// Who is left alone is so by preference only.
func TestNobodyElse(t *testing.T) {
	w := newWard(t, 3)
	for range 5 {
		w.fail("r0")
	}
	b := pick(t, w.Router, &Request{Exclude: []string{"r1", "r2"}})
	require.Equal(t, "r0", b.Decision.Replica.ID)
	b.Release()
	w.SetConnected("r1", false)
	w.SetConnected("r2", false)
	b = pick(t, w.Router, new(Request))
	require.Equal(t, "r0", b.Decision.Replica.ID)
}

// While others are only full, a request waits for them; when one comes back it is served.
func TestWaitWhileEjected(t *testing.T) {
	w := newWard(t, 2, func(o *Options) { o.MaxOngoing = 1 })
	for range 5 {
		w.fail("r0")
	}
	_, full := w.send("r1")
	waiter := enqueue(t, w.Router, &Request{Answer: AnswerMessage})
	require.Equal(t, []*Replica{w.View().ByID("r1")}, waiter.b.Decision.WaitFor)
	w.pass(11 * time.Second)
	w.Attend()
	require.False(t, waiter.waiting, "its trial took the waiter")
	require.Equal(t, "r0", waiter.b.Decision.Replica.ID)
	require.NoError(t, waiter.err)
	full.Release()
}

// warm lets the Router learn what first messages take.
func (w *ward) warm(took time.Duration) {
	for range 20 {
		for _, rep := range w.View().Replicas() {
			w.serve(rep.ID, took)
		}
	}
}

// A replica that takes requests and never answers is found by the calls that wait, before any of them ends.
func TestHungReplica(t *testing.T) {
	w := newWard(t, 4)
	w.warm(200 * time.Millisecond)
	var hung []*Booking
	for range 5 {
		_, b := w.send("r0")
		hung = append(hung, b)
	}
	for range 15 {
		w.serve("r1", 150*time.Millisecond)
		w.serve("r2", 150*time.Millisecond)
	}
	require.Equal(t, Well, w.condition("r0"), "4.5 s are not late")
	w.serve("r1", 600*time.Millisecond)
	w.serve("r1", 0)
	require.Equal(t, Ejected, w.condition("r0"))
	_, cause := w.Condition(w.View().ByID("r0"))
	require.Equal(t, CauseLate, cause)
	for _, b := range hung {
		b.Release()
	}
	// Its trial waits as long: it is ejected again, for longer.
	w.pass(10 * time.Second)
	w.trial("r0")
	w.pass(5*time.Second + round)
	w.serve("r1", 0)
	require.Equal(t, Ejected, w.condition("r0"))
	w.pass(19 * time.Second)
	require.Zero(t, w.picked(100)["r0"])
}

// One call that waits is enough, in time.
func TestOneHungCall(t *testing.T) {
	w := newWard(t, 3)
	w.warm(200 * time.Millisecond)
	w.send("r0")
	for range 24 {
		w.pass(800 * time.Millisecond)
		w.serve("r1", 200*time.Millisecond)
	}
	require.Equal(t, Well, w.condition("r0"))
	w.serve("r1", 200*time.Millisecond)
	w.pass(time.Second)
	w.serve("r1", 200*time.Millisecond)
	require.Equal(t, Ejected, w.condition("r0"))
	w.pass(10*time.Second + round)
	w.serve("r0", 200*time.Millisecond)
	for range 100 { // the call still waits, and says nothing any more
		w.pass(800 * time.Millisecond)
		w.serve("r1", 200*time.Millisecond)
	}
	require.Equal(t, Well, w.condition("r0"))
}

// Calls that are cancelled or whose deadline passes have waited all the same.
func TestDeadlinesShorterThanLate(t *testing.T) {
	w := newWard(t, 3)
	w.warm(200 * time.Millisecond)
	for range 5 {
		q, b := w.send("r0")
		w.serve("r1", 200*time.Millisecond)
		w.pass(time.Second)
		b.Release()
		w.Complete(q, b.Decision, Outcome{Err: errFault, Sent: true, Fault: TimedOut, Usage: NoUsage})
	}
	require.Equal(t, Ejected, w.condition("r0"))
	for range 50 { // and too short ones say nothing
		q, b := w.send("r2")
		w.serve("r1", 200*time.Millisecond)
		w.pass(100 * time.Millisecond)
		b.Release()
		w.Complete(q, b.Decision, Outcome{Err: errFault, Sent: true, Fault: TimedOut, Usage: NoUsage})
	}
	require.Equal(t, Well, w.condition("r2"))
}

// Where all are slow nobody is: neither when nothing is answered, nor when everything is answered late.
func TestOverloadEjectsNobody(t *testing.T) {
	w := newWard(t, 4)
	w.warm(100 * time.Millisecond)
	type call struct {
		q *Request
		b *Booking
	}
	var under []call
	for i := range 2000 {
		q, b := w.send(fmt.Sprintf("r%d", i%4))
		under = append(under, call{q, b})
		w.pass(20 * time.Millisecond)
		if i%2 == 1 { // half of what is offered is served, first come first served
			w.finish(under[0].q, under[0].b)
			under = under[1:]
		}
		for _, rep := range w.View().Replicas() {
			require.Equal(t, Well, w.condition(rep.ID), "step %d", i)
		}
	}
	require.Zero(t, w.Health().Ejections)
}

// Where nobody answers for a time, and then everybody does, that was the way there.
func TestStallEjectsNobody(t *testing.T) {
	w := newWard(t, 4)
	w.warm(100 * time.Millisecond)
	type call struct {
		q *Request
		b *Booking
	}
	var under []call
	for i := range 32 {
		q, b := w.send(fmt.Sprintf("r%d", i/8))
		under = append(under, call{q, b})
	}
	for range 300 {
		w.pass(round)
		w.Attend()
	}
	for _, c := range under {
		w.finish(c.q, c.b)
		w.Attend()
	}
	require.Zero(t, w.Health().Ejections)
}

// A replica that is given more than it can serve, while others idle, is not ill: it answers all the time.
func TestImbalanceEjectsNobody(t *testing.T) {
	w := newWard(t, 4)
	const service = 200 * time.Millisecond
	type call struct {
		q *Request
		b *Booking
	}
	queues := map[string][]call{}
	for step := range 4000 { // of 10 ms
		if step%10 == 0 { // twice what it can serve
			q, b := w.send("r0")
			queues["r0"] = append(queues["r0"], call{q, b})
		}
		if step%40 == 0 {
			id := fmt.Sprintf("r%d", 1+step/40%3)
			q, b := w.send(id)
			queues[id] = append(queues[id], call{q, b})
		}
		w.pass(10 * time.Millisecond)
		for id, queue := range queues {
			if len(queue) > 0 && (id == "r0" && step%20 == 0 || id != "r0" && w.now.Sub(queue[0].b.picked) >= service) {
				w.finish(queue[0].q, queue[0].b)
				queues[id] = queue[1:]
			}
		}
		require.Equal(t, Well, w.condition("r0"), "step %d", step)
	}
	require.Greater(t, len(queues["r0"]), 100)
}

// A replica that answers, but far later than the fleet does.
func TestSlowReplica(t *testing.T) {
	w := newWard(t, 4)
	w.warm(500 * time.Millisecond)
	for range 5 {
		q, b := w.send("r3")
		for range 10 {
			w.serve("r0", 400*time.Millisecond)
			w.serve("r1", 600*time.Millisecond)
		}
		w.finish(q, b)
	}
	require.Equal(t, Ejected, w.condition("r3"))
}

// A replica that is as slow as its prompts are long is not late.
func TestLongPromptsAreNotLate(t *testing.T) {
	w := newWard(t, 4)
	ask := func(on string, tokens int) (*Request, *Booking) {
		q := &Request{Answer: AnswerMessage, Pin: on, PromptTokens: tokens}
		return q, pick(t, w.Router, q)
	}
	for i := range 200 {
		tokens := 500 << (i % 5)
		q, b := ask(fmt.Sprintf("r%d", i%4), tokens)
		w.pass(time.Duration(tokens) * time.Millisecond)
		w.finish(q, b)
	}
	for range 5 {
		ask("r0", 60_000)
	}
	for range 60 {
		w.pass(800 * time.Millisecond)
		w.serve("r1", 200*time.Millisecond)
		w.serve("r2", 0)
	}
	require.Equal(t, Well, w.condition("r0"))
}

// A replica that is new, or back after a while, does not get everything at once; one whose connection blinks does.
func TestSlowStart(t *testing.T) {
	w := newWard(t, 4, func(o *Options) { o.Policy = choosing(leastLoaded) })
	require.Equal(t, Well, w.condition("r3"), "all were new together")
	w.pass(time.Minute)
	for range 40 {
		w.send("")
	}
	w.SetFleet(members(5))
	w.SetConnected("r4", true)
	require.Equal(t, Warming, w.condition("r4"))
	for range 20 {
		w.send("")
	}
	require.Equal(t, 1, w.View().ByID("r4").Ongoing(), "of the least loaded there would be 16")
	w.pass(15 * time.Second)
	for range 20 {
		w.send("")
	}
	most := w.View().ByID("r4").Ongoing()
	require.Greater(t, most, 5)
	require.Less(t, most, 12)
	w.pass(16 * time.Second)
	for range 20 {
		w.send("")
	}
	require.Greater(t, w.View().ByID("r4").Ongoing(), 15)

	w.SetConnected("r0", false)
	w.SetConnected("r0", true)
	require.Equal(t, Well, w.condition("r0"), "a blink")
	w.SetConnected("r0", false)
	w.pass(time.Minute)
	w.SetConnected("r0", true)
	require.Equal(t, Warming, w.condition("r0"))
	w.Disconnect()
	w.pass(time.Minute)
	connectAll(w.Router)
	require.Equal(t, Well, w.condition("r1"), "all are back together")
}

// byKey gives replicas the requests of their keys.
type byKey struct{ choosing }

func (byKey) Uses() Uses { return SharesByKey }

// Where a replica gets the requests of its keys, holding some back would move them twice.
func TestNoSlowStartByKey(t *testing.T) {
	w := newWard(t, 4, func(o *Options) { o.Policy = byKey{leastLoaded} })
	w.pass(time.Minute)
	w.SetFleet(members(5))
	w.SetConnected("r4", true)
	require.Equal(t, Well, w.condition("r4"))
}

// A slow start holds nobody up where the others are full.
func TestSlowStartFallsAway(t *testing.T) {
	w := newWard(t, 1, func(o *Options) { o.MaxOngoing = 3 })
	w.pass(time.Minute)
	w.SetFleet(members(2))
	w.SetConnected("r1", true)
	for range 6 {
		w.send("")
	}
	require.ErrorIs(t, w.Pick(t.Context(), new(Request), new(Booking)), ErrFull)
}

// Quick picks obey, and take no lock again once all are well.
func TestQuickPicksAndHealth(t *testing.T) {
	now := time.Unix(0, 0)
	r, err := NewRouter(Options{Policy: quickFirst{}, Ejection: DefaultEjection(), Now: func() time.Time { return now }})
	require.NoError(t, err)
	r.SetFleet(members(3))
	connectAll(r)
	q := new(Request)
	rep, _, ok := r.PickQuick(q)
	require.True(t, ok)
	r.ReleaseQuick(rep)
	for range 5 {
		r.Complete(q, To(rep, ""), Outcome{Err: errFault, Sent: true, Fault: Failed})
	}
	_, _, ok = r.PickQuick(q)
	require.False(t, ok)
	b := pick(t, r, new(Request))
	require.NotEqual(t, rep.ID, b.Decision.Replica.ID)
	b.Release()
	for i := range 3 {
		now = now.Add(time.Minute)
		q := new(Request)
		b := pick(t, r, q)
		b.Release()
		r.Complete(q, b.Decision, Outcome{Sent: true})
		_, _, ok = r.PickQuick(new(Request))
		require.Equal(t, i > 0, ok)
	}
}

type quickFirst struct{ choosing }

func (quickFirst) Choose(q *Request, v *View) Decision { return firstFree(q, v) }

func (quickFirst) ChooseQuick(_ *Request, v *View) (*Replica, Reason) {
	return v.Connected()[0], "first"
}

// A replica that leaves, or is another than before, is not what is known of it.
func TestHealthEndsWithTheReplica(t *testing.T) {
	w := newWard(t, 3)
	eject := func() {
		for range 5 {
			w.fail("r0")
		}
		require.Equal(t, Ejected, w.condition("r0"))
	}
	eject()
	w.SetFleet(members(3)[1:])
	w.SetFleet(members(3))
	w.SetConnected("r0", true)
	require.Equal(t, Well, w.condition("r0"))
	eject()
	ms := members(3)
	ms[0].Instance = "a"
	w.SetFleet(ms)
	require.Equal(t, Ejected, w.condition("r0"), "that it is named is no news")
	ms[0].Instance = "b"
	w.SetFleet(ms)
	require.Equal(t, Well, w.condition("r0"))
	w.Health()
	require.Zero(t, w.wards.unwell)
	require.Zero(t, w.wards.out)
}

func TestWatchedPickDoesNotAllocate(t *testing.T) {
	w := newWard(t, 8)
	w.warm(time.Millisecond)
	q, b := &Request{Answer: AnswerMessage}, new(Booking)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = w.Pick(t.Context(), q, b)
		took := b.Answered()
		b.Release()
		w.Complete(q, b.Decision, Outcome{Sent: true, FirstMessage: took})
	}))
}

// What watching a call costs, from the pick to its end: beside one that nobody watches, and with a session that is remembered.
func BenchmarkWatched(b *testing.B) {
	for name, answer := range map[string]Answer{"unseen": AnswerUnseen, "message": AnswerMessage} {
		b.Run(name, func(b *testing.B) {
			r := connected(b, Options{Policy: bySession{}, Ejection: DefaultEjection(), DrainGrace: time.Minute}, members(8)...)
			q, bk := &Request{Answer: answer, Session: "session"}, new(Booking)
			b.ReportAllocs()
			for b.Loop() {
				_ = r.Pick(b.Context(), q, bk)
				took := bk.Answered()
				bk.Release()
				r.Complete(q, bk.Decision, Outcome{Sent: true, FirstMessage: took, Usage: NoUsage})
			}
		})
	}
}

// Who waits does not need another's pick to be served: neither at the end of an ejection, nor after a trial that ended
// without a word, nor once a slow start has room.
func TestWhoWaitsIsServedByTime(t *testing.T) {
	var ring func()
	w := newWard(t, 2, func(o *Options) {
		o.MaxOngoing = 1
		o.AfterFunc = func(_ time.Duration, f func()) func() {
			ring = f
			return func() { ring = nil }
		}
	})
	for range 5 {
		w.fail("r1")
	}
	require.Equal(t, Ejected, w.condition("r1"))
	_, busy := w.send("")
	require.Equal(t, "r0", busy.Decision.Replica.ID)
	served := make(chan *Booking, 2)
	wait := func() {
		queued := w.Queued()
		go func() {
			b := new(Booking)
			if w.Acquire(t.Context(), &Request{Answer: AnswerMessage}, b) == nil {
				served <- b
			}
		}()
		require.Eventually(t, func() bool { return w.Queued() > queued }, 20*time.Second, time.Millisecond)
	}
	wait()
	wait()
	w.mu.Lock()
	w.now = w.now.Add(DefaultEjection().BaseTime)
	at := ring
	w.mu.Unlock()
	require.NotNil(t, at)
	at()
	trial := <-served
	require.Equal(t, "r1", trial.Decision.Replica.ID)
	trial.Release() // it was given up
	require.Equal(t, "r1", (<-served).Decision.Replica.ID)
}

// Who honours another's decision sees the end of a mark, and a replica that starts slowly or drains for all but its own.
func TestHonourTrustsWhoDecided(t *testing.T) {
	w := newWard(t, 3)
	_, b := w.send("r0")
	b.Refused(ReplicaReport{Ongoing: 4, QueuedTokens: -1})
	honour := func(id string) error { return w.Honour(&Request{Answer: AnswerMessage}, id, Decision{}, new(Booking)) }
	require.ErrorIs(t, honour("r0"), ErrFull)
	w.pass(firstHold)
	require.NoError(t, honour("r0"))

	w.pass(time.Minute)
	w.SetFleet(members(4))
	w.SetConnected("r3", true)
	require.Equal(t, Warming, w.condition("r3"))
	for range 3 {
		require.NoError(t, honour("r3"))
	}
	w.ReplicaDrains("r2")
	require.NoError(t, honour("r2"))
	for range 5 {
		w.fail("r1")
	}
	require.ErrorIs(t, honour("r1"), ErrNoSuchReplica)
}
