// Package kvindex_test replays traces against a prefix index.
package kvindex_test

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/workload"
)

const (
	openLoopTrace    = "../../../shared/traces/mooncake_conversation.jsonl"
	openLoopReplicas = 128
	openLoopCopies   = 8
	openLoopBlock    = 128    // tokens
	openLoopCapacity = 16_384 // blocks of an engine
	openLoopShort    = 16_384 // tokens of a prompt up to which look-ups are reported
)

// BenchmarkOpenLoop replays the Mooncake conversation trace (or what WARMPATH_TRACE names) against an index
// fed by the events of 128 engines, at a fixed offered rate: every operation is due at a time that does not
// depend on how fast those before were, and what is late is counted as waiting. Two lanes, one a core, are both
// generator and router: they wait for the next due time, and do the operation. One engine's events are in
// order in one lane. A first third of the log fills the caches outside the clock; the clock stops when the last
// operation is done, late or not (the drain). Hashing is not in it: see BenchmarkAppendTokens.
//
// Metrics: blockops/s, hashes looked up, stored and removed by the clock's end; late, by how much longer than
// its window the run took; lookup-p50/p99-ns, the service time of look-ups for prompts of up to 16k tokens;
// all-p99-ns for any prompt; wait-p50/p99-ns, from due to begun; index-MB; B/holder.
func BenchmarkOpenLoop(b *testing.B) {
	trace := loadTrace(b)
	ops, held := opLog(trace, openLoopCopies, openLoopReplicas, openLoopCapacity)
	for _, offered := range []float64{1e6, 2e6, 5e6, 10e6, math.Inf(1)} {
		name := fmt.Sprintf("offered=%.0fM", offered/1e6)
		if math.IsInf(offered, 1) {
			name = "offered=all-at-once"
		}
		b.Run(name, func(b *testing.B) {
			var r result
			for b.Loop() {
				b.StopTimer()
				r = replay(b, ops, offered, held)
				b.StartTimer()
			}
			r.report(b)
		})
	}
}

func loadTrace(b *testing.B) []workload.Request {
	path := cmp.Or(os.Getenv("WARMPATH_TRACE"), openLoopTrace)
	trace, err := workload.LoadFile(path, "mooncake")
	if os.IsNotExist(err) {
		b.Skipf("no trace: %v", err)
	}
	if err != nil {
		b.Fatal(err)
	}
	return trace
}

// lane does its operations one after the other.
type lane struct {
	index  *kvindex.Index
	slots  []kvindex.Slot
	ops    []op
	clock  time.Time
	last   time.Duration // when its last operation was done
	all    []int32       // service time of look-ups in ns
	short  []int32       // of those for short prompts
	waited []int32       // of look-ups, from due to begun
	m      kvindex.Matches
}

func (l *lane) do(o *op) {
	if o.replica < 0 {
		l.index.Match(o.blocks, &l.m)
		return
	}
	l.index.Remove(l.slots[o.replica], o.removed)
	l.index.Insert(l.slots[o.replica], o.blocks)
}

func (l *lane) fill() {
	for i := range l.ops {
		l.do(&l.ops[i])
	}
}

func (l *lane) run() {
	now := time.Since(l.clock)
	for i := range l.ops {
		o := &l.ops[i]
		for now < o.at {
			runtime.Gosched()
			now = time.Since(l.clock)
		}
		begun := now
		l.do(o)
		now = time.Since(l.clock)
		if o.replica >= 0 {
			continue
		}
		took := int32(min(now-begun, math.MaxInt32))
		l.all = append(l.all, took)
		l.waited = append(l.waited, int32(min(begun-o.at, math.MaxInt32)))
		if len(o.blocks) <= openLoopShort/openLoopBlock {
			l.short = append(l.short, took)
		}
	}
	l.last = now
}

type result struct {
	blockOps           int
	window, took       time.Duration
	all, short, waited []int32
	stats              kvindex.Stats
	held               int
}

// replay runs the operations against a new index and checks that it has in the end what the engines hold.
func replay(b *testing.B, ops []op, offered float64, held int) result {
	x := kvindex.New(0)
	var slots []kvindex.Slot
	for range openLoopReplicas {
		s := x.Add(nil)
		x.SetCapacity(s, openLoopCapacity)
		x.SetLive(s, true)
		slots = append(slots, s)
	}
	lanes := func(ops []op) []*lane {
		all := []*lane{{index: x, slots: slots}, {index: x, slots: slots}}
		for i, o := range ops {
			at := o.replica
			if at < 0 {
				at = i
			}
			l := all[at%len(all)]
			l.ops = append(l.ops, o)
		}
		for _, l := range all {
			l.all, l.short, l.waited = make([]int32, 0, len(l.ops)), make([]int32, 0, len(l.ops)), make([]int32, 0, len(l.ops))
		}
		return all
	}
	cold := len(ops) / 3
	together(lanes(ops[:cold]), (*lane).fill)

	r := result{}
	timed := slices.Clone(ops[cold:])
	for i := range timed {
		r.blockOps += timed[i].blockOps()
	}
	r.window = time.Duration(float64(r.blockOps) / offered * float64(time.Second))
	first, span := timed[0].at, float64(timed[len(timed)-1].at-timed[0].at)
	for i := range timed {
		timed[i].at = time.Duration(float64(timed[i].at-first) / span * float64(r.window))
	}
	all := lanes(timed)
	runtime.GC()
	clock := time.Now()
	for _, l := range all {
		l.clock = clock
	}
	together(all, (*lane).run)
	for _, l := range all {
		r.took = max(r.took, l.last)
		r.all, r.short, r.waited = append(r.all, l.all...), append(r.short, l.short...), append(r.waited, l.waited...)
	}
	if r.stats, r.held = x.Stats(), x.Holders(); r.held != held || r.stats.Evictions != 0 {
		b.Fatalf("the engines hold %d blocks: %+v", held, r.stats)
	}
	return r
}

func together(lanes []*lane, do func(*lane)) {
	var wg sync.WaitGroup
	for _, l := range lanes {
		wg.Go(func() { do(l) })
	}
	wg.Wait()
}

func (r *result) report(b *testing.B) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(r.blockOps)/r.took.Seconds(), "blockops/s")
	if r.window > 0 {
		b.ReportMetric(float64(r.took)/float64(r.window)-1, "late")
		b.ReportMetric(quantile(r.waited, 0.5), "wait-p50-ns")
		b.ReportMetric(quantile(r.waited, 0.99), "wait-p99-ns")
	}
	b.ReportMetric(quantile(r.short, 0.5), "lookup-p50-ns")
	b.ReportMetric(quantile(r.short, 0.99), "lookup-p99-ns")
	b.ReportMetric(quantile(r.all, 0.99), "all-p99-ns")
	b.ReportMetric(float64(r.stats.Bytes)/1e6, "index-MB")
	b.ReportMetric(float64(r.stats.Bytes)/float64(r.held), "B/holder")
}

func quantile(ns []int32, q float64) float64 {
	slices.Sort(ns)
	return float64(ns[int(q*float64(len(ns)-1))])
}
