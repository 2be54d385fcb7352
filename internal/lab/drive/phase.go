package drive

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A Phase is a part of a run: before, during and after a fault. Its JSON is part of the command's contract.
type Phase struct {
	Name     string `json:"name"`
	Requests int    `json:"requests"`
	Errors   int    `json:"errors"`
	// CachedTokenRatio, TTFT and MaxOverMeanLoad are those of Result, of the requests that arrived in this part.
	CachedTokenRatio float64      `json:"cached_token_ratio"`
	TTFT             Distribution `json:"ttft_ms"`
	MaxOverMeanLoad  float64      `json:"max_over_mean_load"`
	// ByServer is the share of the requests that the look-aside server decided.
	ByServer float64 `json:"decided_by_server"`
}

// A Mark is where a phase begins, in the workload's time.
type Mark struct {
	Name string
	At   time.Duration
}

// Phases cuts measured samples at marks, which are in order. What arrives before the first is left out.
func Phases(samples []Sample, replicas int, marks []Mark) []Phase {
	all := make([]Phase, len(marks))
	for i, m := range marks {
		var part []Sample
		for _, s := range samples {
			if !s.WarmUp && s.At >= m.At && (i+1 == len(marks) || s.At < marks[i+1].At) {
				part = append(part, s)
			}
		}
		r := Summarize("", replicas, part, Targets{})
		all[i] = Phase{
			Name: m.Name, Requests: r.Requests, Errors: r.Errors, CachedTokenRatio: r.CachedTokenRatio, TTFT: r.TTFT,
			MaxOverMeanLoad: r.MaxOverMeanLoad, ByServer: share(float64(byServer(part)), float64(len(part))),
		}
	}
	return all
}

func byServer(samples []Sample) (n int) {
	for i := range samples {
		if samples[i].Reason == policy.ReasonCentral || samples[i].Rule == policy.ReasonCentral {
			n++
		}
	}
	return n
}

// What counts as full quality: over so many requests, or a quarter of those that are left, this part of what it was
// before, of the cached tokens and of the decisions that are the server's.
const (
	qualityOver = 100
	qualityPart = 0.95
)

// Recovered is how long after a moment of the workload's time quality was full again, and false if it never was.
func Recovered(samples []Sample, from time.Duration, before Phase) (time.Duration, bool) {
	var after []Sample
	for _, s := range samples {
		if s.At >= from && s.Err == nil {
			after = append(after, s)
		}
	}
	slices.SortStableFunc(after, func(a, b Sample) int { return int(a.At - b.At) })
	over := min(qualityOver, len(after)/4)
	for i := 0; over > 0 && i+over <= len(after); i++ {
		window := after[i : i+over]
		prompt, cached := 0, 0
		for _, s := range window {
			prompt, cached = prompt+s.Prompt, cached+s.Cached
		}
		if share(float64(cached), float64(prompt)) >= qualityPart*before.CachedTokenRatio &&
			float64(byServer(window)) >= qualityPart*before.ByServer*float64(over) {
			return window[0].At - from, true
		}
	}
	return 0, false
}
