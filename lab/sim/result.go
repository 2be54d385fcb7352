package sim

import (
	"reflect"
	"slices"
	"time"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
)

// result computes the figures of a run.
func (r *run) result() *drive.Result {
	res := drive.Summarize(r.name(), r.Replicas, r.samples, r.Targets)
	res.Simulated = &drive.Simulated{Preemptions: r.preempts, Balance: r.seen.balance()}
	res.EndedKV = r.seen.endedKV / float64(max(r.seen.looks, 1))
	res.Split = float64(r.pairs) / float64(max(res.Requests, 1))
	kv := r.activeKV()
	sum := 0.0
	for i := range kv {
		if i < len(r.warmKV) {
			kv[i] -= r.warmKV[i]
		}
		sum += kv[i]
	}
	if sum > 0 {
		res.KVImbalance = slices.Max(kv) * float64(len(kv)) / sum
	}
	return &res
}

// activeKV is each machine's time integral of memory held.
func (r *run) activeKV() []float64 {
	kv := make([]float64, len(r.machines))
	for i, m := range r.machines {
		kv[i] = m.engine.Stats().ActiveKV
	}
	return kv
}

// Merge is the result of several seeds of one policy: counts are added up, figures are means. Samples are those
// of the first, for the charts. With one seed it is that one's.
func Merge(seeds []*drive.Result) drive.Result {
	all := *seeds[0]
	if len(seeds) == 1 {
		return all
	}
	all.Decisions, all.Loads, all.Simulated = map[string]int{}, map[string]int{}, new(drive.Simulated)
	all.Requests, all.Errors = 0, 0
	for _, r := range seeds {
		all.Requests += r.Requests
		all.Errors += r.Errors
		all.Preemptions += r.Preemptions
		for why, n := range r.Decisions {
			all.Decisions[why] += n
		}
		for id, n := range r.Loads {
			all.Loads[id] += n
		}
		if all.FirstError == nil {
			all.FirstError = r.FirstError
		}
	}
	mean, spread := meanAndSpread(seeds)
	all.Figures, all.Balance, all.Spread = mean.Figures, mean.Balance, &spread
	return all
}

// meanAndSpread are those of every figure of a Spread.
func meanAndSpread(seeds []*drive.Result) (mean, spread drive.Spread) {
	figures := make([][]*float64, len(seeds))
	for i, r := range seeds {
		one := drive.Spread{Figures: r.Figures, Balance: r.Balance}
		figures[i] = floats(reflect.ValueOf(&one).Elem())
	}
	spreads := floats(reflect.ValueOf(&spread).Elem())
	for k, to := range floats(reflect.ValueOf(&mean).Elem()) {
		sum, least, most := 0.0, *figures[0][k], *figures[0][k]
		for _, seed := range figures {
			x := *seed[k]
			sum, least, most = sum+x, min(least, x), max(most, x)
		}
		*to, *spreads[k] = sum/float64(len(seeds)), most-least
	}
	return mean, spread
}

// floats are the numbers in a struct of numbers and such structs.
func floats(v reflect.Value) (all []*float64) {
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Struct {
			all = append(all, floats(f)...)
		} else {
			all = append(all, f.Addr().Interface().(*float64))
		}
	}
	return all
}

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
