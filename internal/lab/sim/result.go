package sim

import (
	"slices"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// Comparison is the outcome of the command. Its JSON is the demo's, with more in each result.
type Comparison struct {
	// Replicas and Clients are how many there were.
	Replicas int `json:"replicas"`
	Clients  int `json:"clients"`
	// Requests is how many were measured with each policy, of all seeds together.
	Requests int `json:"requests"`
	// Results has one entry per policy, in the order asked for.
	Results []Result `json:"results"`
}

// Drive is the part that the demo has too.
func (c *Comparison) Drive() drive.Comparison {
	d := drive.Comparison{Replicas: c.Replicas, Clients: c.Clients, Requests: c.Requests}
	for i := range c.Results {
		d.Results = append(d.Results, c.Results[i].Result)
	}
	return d
}

// Result is the measurements of one policy.
type Result struct {
	drive.Result
	// Preemptions counts how often measured requests lost their place in an engine for lack of memory.
	Preemptions int `json:"preemptions"`
	// KVImbalance is the KV cache that requests held on the busiest replica over the mean of all, in the mean of
	// the time after the warm-up.
	KVImbalance float64 `json:"kv_imbalance"`
	// FleetChange is there if the fleet changed.
	FleetChange *FleetChange `json:"fleet_change,omitempty"`
	// Spread is there with several seeds.
	Spread *Spread `json:"spread,omitempty"`
}

// Spread is the largest figure of any seed less the smallest.
type Spread struct {
	CachedTokenRatio float64            `json:"cached_token_ratio"`
	TTFT             drive.Distribution `json:"ttft_ms"`
	TPOT             drive.Distribution `json:"tpot_ms"`
	Latency          drive.Distribution `json:"latency_ms"`
	Goodput          float64            `json:"goodput"`
	OutputTokensPerS float64            `json:"output_tokens_per_s"`
	MaxOverMeanLoad  float64            `json:"max_over_mean_load"`
	KVImbalance      float64            `json:"kv_imbalance"`
	LostCache        float64            `json:"lost_cache,omitempty"`
	UnavoidableLoss  float64            `json:"unavoidable_loss,omitempty"`
}

// result computes the figures of a run.
func (r *run) result() *Result {
	res := &Result{Result: drive.Summarize(r.name(), r.Replicas, r.samples, r.Targets), Preemptions: r.preempts}
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
	return res
}

// Merge is the result of several seeds of one policy: counts are added up, figures are means. Samples are those
// of the first, for the charts. With one seed it is that one's.
func Merge(seeds []*Result) Result {
	all := *seeds[0]
	if len(seeds) == 1 {
		return all
	}
	all.Decisions, all.Loads, all.Spread = map[string]int{}, map[string]int{}, new(Spread)
	all.Requests, all.Errors, all.Preemptions = 0, 0, 0
	if all.FleetChange != nil {
		all.FleetChange = new(FleetChange)
	}
	for _, r := range seeds {
		all.Requests += r.Requests
		all.Errors += r.Errors
		all.Preemptions += r.Preemptions
		if r.FleetChange != nil {
			all.FleetChange.Tokens += r.FleetChange.Tokens
		}
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
	for _, f := range figures(&all, all.Spread) {
		sum, least, most := 0.0, *f.of(seeds[0]), *f.of(seeds[0])
		for _, r := range seeds {
			x := *f.of(r)
			sum, least, most = sum+x, min(least, x), max(most, x)
		}
		*f.mean, *f.spread = sum/float64(len(seeds)), most-least
	}
	if all.FleetChange != nil {
		all.FleetChange.ratio()
	}
	return all
}

// figure is one that is averaged: where the mean and the spread go, and where it is in a result.
type figure struct {
	mean, spread *float64
	of           func(*Result) *float64
}

func figures(all *Result, s *Spread) []figure {
	var fs []figure
	add := func(spread *float64, of func(*Result) *float64) {
		fs = append(fs, figure{of(all), spread, of})
	}
	distribution := func(d *drive.Distribution, of func(*Result) *drive.Distribution) {
		add(&d.Mean, func(r *Result) *float64 { return &of(r).Mean })
		add(&d.P50, func(r *Result) *float64 { return &of(r).P50 })
		add(&d.P90, func(r *Result) *float64 { return &of(r).P90 })
		add(&d.P99, func(r *Result) *float64 { return &of(r).P99 })
	}
	distribution(&s.TTFT, func(r *Result) *drive.Distribution { return &r.TTFT })
	distribution(&s.TPOT, func(r *Result) *drive.Distribution { return &r.TPOT })
	distribution(&s.Latency, func(r *Result) *drive.Distribution { return &r.Latency })
	add(&s.CachedTokenRatio, func(r *Result) *float64 { return &r.CachedTokenRatio })
	add(&s.Goodput, func(r *Result) *float64 { return &r.Goodput })
	add(&s.OutputTokensPerS, func(r *Result) *float64 { return &r.OutputTokensPerS })
	add(&s.MaxOverMeanLoad, func(r *Result) *float64 { return &r.MaxOverMeanLoad })
	add(&s.KVImbalance, func(r *Result) *float64 { return &r.KVImbalance })
	if all.FleetChange != nil {
		add(&s.LostCache, func(r *Result) *float64 { return &r.FleetChange.Lost })
		add(&s.UnavoidableLoss, func(r *Result) *float64 { return &r.FleetChange.Unavoidable })
	}
	return fs
}
