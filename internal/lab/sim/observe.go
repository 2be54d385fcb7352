package sim

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

// observed is the sum, over the measured decisions, of what the true state of the engines was at each.
type observed struct {
	decisions                int
	requestsCV, kvCV, regret float64

	looks   int // at endedKV
	endedKV float64
}

// observe looks at the engines before the one that was picked gets a request.
func (r *run) observe(picked *machine, work *enginesim.Request) {
	var requests, kv variation
	best, chosen := never, time.Duration(0)
	for _, m := range r.machines {
		load, ttft := m.engine.Load(), m.engine.Estimate(r.now, work)
		requests.add(load.Running + load.Waiting)
		kv.add(load.UsedTokens)
		best = min(best, ttft)
		if m == picked {
			chosen = ttft
		}
	}
	r.seen.decisions++
	r.seen.requestsCV += requests.coefficient()
	r.seen.kvCV += kv.coefficient()
	r.seen.regret += float64(chosen-best) / float64(time.Millisecond)
}

// balance is the means.
func (o *observed) balance() drive.Balance {
	n := float64(max(o.decisions, 1))
	return drive.Balance{RequestsCV: o.requestsCV / n, KVCV: o.kvCV / n, RegretMS: o.regret / n}
}

// followUps are the share of the measured requests of a session, but for its first, that went where the first did, and
// the share of their prompt tokens that was cached there.
func (r *run) followUps() (atHome, cached float64) {
	home := map[string]string{}
	later, there, tokens, found := 0, 0, 0, 0
	for i := range r.samples {
		s, session := &r.samples[i], r.rs[i].Session
		if session == "" || s.Replica == "" {
			continue
		}
		first, known := home[session]
		if !known {
			home[session] = s.Replica
		} else if !s.WarmUp {
			later++
			tokens, found = tokens+s.Prompt, found+s.Cached
			if s.Replica == first {
				there++
			}
		}
	}
	return float64(there) / float64(max(later, 1)), float64(found) / float64(max(tokens, 1))
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

// variation is what a coefficient of variation is made of.
type variation struct{ n, sum, squares float64 }

func (v *variation) add(x int) {
	v.n++
	v.sum += float64(x)
	v.squares += float64(x) * float64(x)
}

// coefficient is the standard deviation over the mean; 0 where all are 0.
func (v *variation) coefficient() float64 {
	if v.sum == 0 {
		return 0
	}
	return math.Sqrt(max(v.n*v.squares-v.sum*v.sum, 0)) / v.sum
}
