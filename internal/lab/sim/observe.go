package sim

import (
	"time"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

// observed is the sum, over the measured decisions, of what the true state of the engines was at each.
type observed struct {
	decisions    int
	kvCV, regret float64

	looks   int // at endedKV
	endedKV float64
}

// observe looks at the engines before the one that was picked gets a request.
func (r *run) observe(picked *machine, work *enginesim.Request) {
	var kv drive.Variation
	best, chosen := never, time.Duration(0)
	for _, m := range r.machines {
		ttft := m.engine.Estimate(r.now, work)
		kv.Add(m.engine.Load().UsedTokens)
		best = min(best, ttft)
		if m == picked {
			chosen = ttft
		}
	}
	r.seen.decisions++
	r.seen.kvCV += kv.Coefficient()
	r.seen.regret += float64(chosen-best) / float64(time.Millisecond)
}

// balance is the means.
func (o *observed) balance() drive.Balance {
	n := float64(max(o.decisions, 1))
	return drive.Balance{KVCV: o.kvCV / n, RegretMS: o.regret / n}
}

// looks is how often endedKV is looked at in a run.
const looks = 8

// lookAtEnded adds the share of the KV caches that sessions hold which have ended before the next arrival.
func (r *run) lookAtEnded(next int) {
	last := make(map[string]int)
	for i := range r.rs {
		last[r.rs[i].Session] = i
	}
	delete(last, "")
	share := 0.0
	for _, m := range r.machines {
		held := make(map[uint64]bool)
		for _, i := range last {
			if i >= next || r.samples[i].Latency == 0 {
				continue
			}
			hashes := r.of(i).Hashes
			for _, h := range hashes[:m.engine.Published(hashes)] {
				held[h] = true
			}
		}
		cfg := m.engine.Config()
		share += float64(len(held)*cfg.BlockSize) / float64(cfg.KVTokens)
	}
	r.seen.looks++
	r.seen.endedKV += share / float64(len(r.machines))
}
