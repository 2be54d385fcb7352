package drive

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// Search asks for the capacity of a fleet.
type Search struct {
	// Workload is what arrives; its Rate is not used.
	Workload workload.Spec
	// WarmUp is how much of it is not judged.
	WarmUp time.Duration
	// Replicas is the number of engines, Preset and KVTokens are theirs.
	Replicas int
	Preset   string
	KVTokens int
}

var capacities = struct {
	sync.Mutex // held during a search, so that nothing is searched for twice
	found      map[Search]float64
}{found: make(map[Search]float64)}

// Capacity is the highest rate at which round robin with one client keeps a goodput of at least 0.95. It is
// found in virtual time, by bisection to 3 %, and remembered for the life of the process.
func Capacity(ctx context.Context, s Search) (float64, error) {
	s.Workload.Rate = 0
	capacities.Lock()
	defer capacities.Unlock()
	if rate, ok := capacities.found[s]; ok {
		return rate, nil
	}
	rate, err := Highest(float64(s.Replicas), func(rate float64) (bool, error) { return s.copes(ctx, rate) })
	if err != nil {
		return 0, fmt.Errorf("capacity of %d engines for %s: %w", s.Replicas, s.Workload.Name, err)
	}
	capacities.found[s] = rate
	return rate, nil
}

// copes reports whether the goodput at a rate is good enough. With round robin and one client each engine's
// requests are known beforehand, so engines run one after the other, until too many requests were too slow.
func (s *Search) copes(ctx context.Context, rate float64) (bool, error) {
	spec := s.Workload
	spec.Rate = rate
	rs, err := workload.Generate(spec)
	if err != nil {
		return false, err
	}
	_, left := Judged(rs, s.WarmUp) // requests that may yet be too slow
	for k := range s.Replicas {
		e, err := enginesim.New(enginesim.Config{Preset: s.Preset, KVTokens: s.KVTokens})
		if err != nil {
			return false, err
		}
		for i := k; i < len(rs) && left >= 0; i += s.Replicas {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			left -= s.until(e, rs[i].At)
			if _, err := e.Submit(rs[i].At, enginesim.FromWorkload(&rs[i], e.Config().BlockSize)); err != nil {
				return false, err
			}
		}
		for at, busy := e.NextStep(); busy && left >= 0; at, busy = e.NextStep() {
			left -= s.until(e, at)
		}
		if left < 0 {
			return false, nil
		}
	}
	return true, nil
}

// until runs an engine to a time and counts the judged requests that ended too slow.
func (s *Search) until(e *enginesim.Engine, now time.Duration) (slow int) {
	for {
		at, busy := e.NextStep()
		if !busy || at > now {
			return slow
		}
		for _, ev := range e.Step(at) {
			if !ev.Done {
				continue
			}
			if r := ev.Seq.Result(); r.Arrival >= s.WarmUp && !(Targets{}).Good(r.TTFT(), r.TPOT()) {
				slow++
			}
		}
	}
}
