package router

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
)

// engine serves prompts one after the other, and decodes at the same time.
type engine struct {
	speed float64 // 1 = 20,000 tokens a second
	free  time.Duration
	busy  time.Duration
}

// serve returns how long a prompt of so many tokens takes to its first token, and how long
// its decoding takes.
func (e *engine) serve(now time.Duration, tokens int, out float64) (first, rest time.Duration) {
	work := time.Duration((15 + float64(tokens)/20) / e.speed * float64(time.Millisecond))
	e.free = max(e.free, now) + work
	e.busy += work
	return e.free - now, time.Duration(out / e.speed * float64(time.Second))
}

// event is the first message or the end of a call in a fleetRun.
type event struct {
	at   time.Duration
	call int
	do   func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].call < e[j].call
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// fleetRun sends calls to engines in virtual time, through clients that share nothing.
type fleetRun struct {
	engines []*engine
	routers []*Router
	rnd     *rand.Rand
	now     time.Duration
	calls   int
	pending events
}

// leastWork picks the replica that would finish the prompt first.
func leastWork(q *policy.Request, v policy.View) policy.Decision {
	var best *policy.Replica
	least, ties := math.Inf(1), 0
	for _, r := range v.Connected() {
		switch l := v.Load(r) + float64(q.PromptTokens)/r.Rate(); {
		case l < least:
			best, least, ties = r, l, 1
		case l == least:
			if ties++; v.IntN(ties) == 0 {
				best = r
			}
		}
	}
	return policy.To(best, policy.ReasonLeastLoaded)
}

// loading is a policy made of a function that looks at load.
func loading(choose func(*policy.Request, policy.View) policy.Decision) policy.Policy {
	return policy.Policy{Uses: policy.UsesLoad, Choose: choose}
}

func newFleetRun(t *testing.T, seed uint64, clients int, speeds []float64, change func(*Options), ms ...Member) *fleetRun {
	f := &fleetRun{rnd: rand.New(rand.NewPCG(seed, 5))}
	for _, s := range speeds {
		f.engines = append(f.engines, &engine{speed: s})
	}
	if ms == nil {
		ms = members(len(speeds))
	}
	for i := range clients {
		o := Options{Policy: loading(leastWork), Rand: rand.New(rand.NewPCG(seed, uint64(i)))}
		if change != nil {
			change(&o)
		}
		f.routers = append(f.routers, connected(t, o, ms...))
	}
	return f
}

// run sends calls, so many a second, and then lets all end.
func (f *fleetRun) run(t *testing.T, calls int, perSecond float64) {
	for range calls {
		f.now += time.Duration(f.rnd.ExpFloat64() / perSecond * float64(time.Second))
		f.until(f.now)
		f.send(t)
	}
	f.until(math.MaxInt64)
}

func (f *fleetRun) until(at time.Duration) {
	for len(f.pending) > 0 && f.pending[0].at <= at {
		heap.Pop(&f.pending).(event).do()
	}
}

func (f *fleetRun) send(t *testing.T) {
	r := f.routers[f.rnd.IntN(len(f.routers))]
	q := &policy.Request{PromptTokens: 200 + int(f.rnd.ExpFloat64()*1500)}
	b := pick(t, r, q)
	e := f.engines[b.Decision.Replica.Index()]
	first, rest := e.serve(f.now, q.PromptTokens, f.rnd.ExpFloat64())
	f.calls++
	heap.Push(&f.pending, event{f.now + first, f.calls, b.PrefillDone})
	heap.Push(&f.pending, event{f.now + first + rest, f.calls, func() {
		b.Release()
		r.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: first, Usage: policy.NoUsage})
	}})
}

// rates lists each client's rates.
func (f *fleetRun) rates() (all [][]float64) {
	for _, r := range f.routers {
		var rates []float64
		for _, rep := range r.View().Replicas() {
			rates = append(rates, rep.Rate())
		}
		all = append(all, rates)
	}
	return all
}

// share returns the mean busy time of the first half of the engines over that of the others.
func (f *fleetRun) share() float64 {
	var busy [2]time.Duration
	for i, e := range f.engines {
		busy[i*2/len(f.engines)] += e.busy
	}
	return float64(busy[0]) / float64(busy[1])
}

func repeat(n int, speeds ...float64) (all []float64) {
	for _, s := range speeds {
		for range n {
			all = append(all, s)
		}
	}
	return all
}

// Half of the fleet is twice as slow. Once the rates are learned both halves are equally busy, and engines of one
// kind have one rate.
func TestTwoKindsAreEquallyBusy(t *testing.T) {
	const perSecond = 80 // nine tenths of what 8 engines can
	for _, clients := range []int{1, 8} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			f := newFleetRun(t, 1, clients, repeat(4, 1, 0.5), nil)
			f.run(t, 1000*clients, perSecond)
			for _, e := range f.engines {
				e.busy = 0
			}
			f.run(t, 6000, perSecond)
			fixed := newFleetRun(t, 1, clients, repeat(4, 1, 0.5), func(o *Options) { o.Policy.Uses &^= policy.UsesLoad })
			fixed.run(t, 6000, perSecond)
			t.Logf("busy, fast to slow: %.3f learned, %.3f not; rates %.2f", f.share(), fixed.share(), f.rates()[0])
			require.InDelta(t, 1, f.share(), 0.1)
			require.Less(t, fixed.share(), 0.9, "without rates the halves must differ, or the test could not fail")
			for _, rates := range f.rates() {
				for i, rate := range rates {
					require.Equal(t, rates[i/4*4], rate, "one kind, one rate")
				}
				require.InDelta(t, 2, rates[0]/rates[4], 0.6)
			}
		})
	}
}

// Equal engines keep their weights exactly, however busy they are, and however few of the others' calls each
// client sees.
func TestEqualEnginesStayEqual(t *testing.T) {
	for _, clients := range []int{1, 8, 32} {
		for _, perSecond := range []float64{40, 110} {
			f := newFleetRun(t, uint64(clients), clients, repeat(8, 1), nil)
			f.run(t, 1000*clients, perSecond)
			for _, rates := range f.rates() {
				require.Equal(t, repeat(8, 1), rates, "%d clients, %v/s", clients, perSecond)
			}
		}
	}
}

// A correct weight changes nothing; a wrong one is corrected.
func TestWeightIsThePrior(t *testing.T) {
	heavy := func(m *Member) { m.Weight = 2 }
	fleet := append(members(2, heavy), member("r2"), member("r3"))
	right := newFleetRun(t, 1, 1, repeat(2, 1, 0.5), nil, fleet...)
	right.run(t, 3000, 35)
	require.Equal(t, []float64{2, 2, 1, 1}, right.rates()[0])
	wrong := newFleetRun(t, 1, 1, repeat(2, 1, 1), nil, fleet...)
	wrong.run(t, 3000, 35)
	rates := wrong.rates()[0]
	require.Equal(t, rates[0], rates[1])
	require.InDelta(t, 1, rates[0]/rates[2], 0.15)
	require.InDelta(t, 6, rates[0]+rates[1]+rates[2]+rates[3], 1e-9, "load stays in tokens")
}

// feed completes calls of one prompt length on each replica, which take the times that took returns.
func feed(t *testing.T, r *Router, rounds int, took func(rep *policy.Replica, round int) time.Duration) {
	t.Helper()
	for i := range rounds {
		for _, rep := range r.View().Replicas() {
			q := &policy.Request{PromptTokens: 1000 + 10*(i%7), Pin: rep.ID}
			b := pick(t, r, q)
			b.Release()
			r.Complete(q, b.Decision, policy.Outcome{Sent: true, FirstMessage: took(rep, i), Usage: policy.NoUsage})
		}
	}
}

func ratesOf(r *Router) (rates []float64) {
	for _, rep := range r.View().Replicas() {
		rates = append(rates, rep.Rate())
	}
	return rates
}

func slowFirst(by float64) func(*policy.Replica, int) time.Duration {
	return func(rep *policy.Replica, round int) time.Duration {
		d := time.Duration(100+round%5) * time.Millisecond
		if rep.Index() == 0 {
			return time.Duration(by * float64(d))
		}
		return d
	}
}

func TestRatesAreLearnedAndForgotten(t *testing.T) {
	equal := repeat(4, 1)
	r := connected(t, Options{Policy: loading(leastLoaded)}, members(4)...)
	require.True(t, r.Observes())
	feed(t, r, 15, slowFirst(2))
	require.Equal(t, equal, ratesOf(r), "too early to judge")
	feed(t, r, 100, slowFirst(2))
	rates := ratesOf(r)
	require.InDelta(t, 2, rates[1]/rates[0], 0.05)
	require.InDelta(t, 4, rates[0]+3*rates[1], 1e-9)
	require.Equal(t, rates[1:3], rates[2:4])

	feed(t, r, 60, slowFirst(2.05))
	require.Equal(t, rates, ratesOf(r), "a little does not move them")
	feed(t, r, 2000, slowFirst(1))
	require.Equal(t, equal, ratesOf(r), "the replica has become as fast")
	feed(t, r, 2000, slowFirst(1.1))
	require.Equal(t, equal, ratesOf(r), "nearly as fast is as fast")
	feed(t, r, 3000, slowFirst(1000))
	require.InDelta(t, 1./8, ratesOf(r)[0], 1e-9)

	r.Fleet.Set(append(members(4), member("new")))
	connectAll(r)
	require.Equal(t, 1.0, r.View().ByID("new").Rate())
	require.InDelta(t, 1./8, r.View().ByID("r0").Rate(), 1e-9, "a change of the fleet keeps what was learned")
}

// A replica with longer prompts or longer queues is not slower.
func TestWorkIsNotSlowness(t *testing.T) {
	for name, perToken := range map[string]time.Duration{"as work": time.Millisecond, "whatever the work": 0} {
		t.Run(name, func(t *testing.T) {
			r := connected(t, Options{Policy: loading(leastLoaded)}, members(4)...)
			for i := range 400 {
				for _, rep := range r.View().Replicas() {
					q := &policy.Request{PromptTokens: (rep.Index() + 1) * 500 * (1 + i%4), Pin: rep.ID}
					b := pick(t, r, q)
					b.Release()
					took := time.Second + perToken*time.Duration(q.PromptTokens+load.Overhead)
					if perToken > 0 {
						took -= time.Second
					}
					r.Complete(q, b.Decision, policy.Outcome{FirstMessage: took, Usage: policy.NoUsage})
				}
			}
			require.Equal(t, repeat(4, 1), ratesOf(r))
		})
	}
}

// Calls without a measure of speed change no rate.
func TestNothingToLearn(t *testing.T) {
	r := connected(t, Options{Policy: loading(leastLoaded)}, members(2)...)
	fixed := connected(t, Options{Policy: choosing(leastLoaded)}, members(2)...)
	blind := connected(t, Options{}, members(2)...)
	require.False(t, fixed.Observes())
	require.False(t, blind.Observes())
	slow := policy.Outcome{FirstMessage: time.Hour, Usage: policy.NoUsage}
	for range 500 {
		for _, id := range []string{"r0", "r1"} {
			q := &policy.Request{PromptTokens: 100, Pin: id}
			for _, each := range []*Router{r, fixed, blind} {
				b := pick(t, each, q)
				b.Release()
				o := policy.Outcome{FirstMessage: time.Second, Usage: policy.NoUsage}
				if id == "r0" {
					if o = slow; each == r {
						o.Err = ErrFull
					}
				}
				each.Complete(q, b.Decision, o)
			}
		}
		r.Complete(&policy.Request{PromptTokens: 9}, policy.To(r.View().ByID("r0"), ""), policy.Outcome{})
		r.Complete(&policy.Request{}, policy.To(r.View().ByID("r0"), ""), slow)
		r.Complete(&policy.Request{}, policy.Decision{}, slow)
	}
	for _, each := range []*Router{r, fixed, blind} {
		require.Equal(t, repeat(2, 1), ratesOf(each))
	}
}

// Rates may change while reservations are held.
func TestRatesUnderReservations(t *testing.T) {
	r := connected(t, Options{Policy: loading(leastLoaded)}, members(3)...)
	held := pick(t, r, &policy.Request{PromptTokens: 5000})
	feed(t, r, 200, slowFirst(4))
	require.NotEqual(t, 1.0, r.View().ByID("r0").Rate())
	require.InDelta(t, 5500/r.View().ByID("r0").Rate(), r.View().Load(r.View().ByID("r0")), 1e-6)
	held.Release()
	require.Zero(t, meanLoad(r.View()))
}

func BenchmarkLearn(b *testing.B) {
	r := connected(b, Options{Policy: loading(leastLoaded)}, members(64)...)
	q := &policy.Request{PromptTokens: 1000}
	o := policy.Outcome{FirstMessage: time.Second, Usage: policy.NoUsage}
	d := policy.To(r.View().ByID("r0"), "")
	b.ReportAllocs()
	for b.Loop() {
		r.Complete(q, d, o)
	}
}
