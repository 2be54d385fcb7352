package sim

import (
	"reflect"
	"slices"

	"github.com/warmpath/warmpath/internal/lab/drive"
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
