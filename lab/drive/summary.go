package drive

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Comparison is the outcome of demo, replay and sim. Its JSON is part of the command's contract.
type Comparison struct {
	// Replicas and Clients are how many there were.
	Replicas int `json:"replicas"`
	Clients  int `json:"clients"`
	// Requests is how many were measured with each policy, of all seeds together.
	Requests int `json:"requests"`
	// Results has one entry per policy, in the order asked for.
	Results []Result `json:"results"`
	// Invalid is why the figures mean nothing; empty if they do.
	Invalid string `json:"invalid,omitempty"`
}

// MaxLate is how late, in the engines' time, 99 of 100 requests of a valid run are sent at most.
const MaxLate = time.Second

// CheckTimes makes the comparison invalid if requests were not sent on time. speed is seconds of the engines' time in a
// second.
func (c *Comparison) CheckTimes(speed float64) {
	for i := range c.Results {
		r := &c.Results[i]
		if late := time.Duration(r.Lag.P99 * speed * float64(time.Millisecond)); late > MaxLate {
			c.Invalid = fmt.Sprintf("this machine was too busy: 1 of 100 requests of %s was sent more than %v of engine time late; lower --speed or the load",
				r.Policy, late.Round(time.Millisecond))
		}
	}
}

// Result is the measurements of one policy.
type Result struct {
	Policy   string `json:"policy"`
	Requests int    `json:"requests"`
	// Errors counts calls that failed, those of the warm-up too.
	Errors int `json:"errors"`
	Figures
	// Decisions counts requests by the reason of their last attempt.
	Decisions map[string]int `json:"decisions"`
	// Simulated is what only the simulator measures; nil elsewhere.
	*Simulated

	// Loads are the computed prompt tokens by replica.
	Loads map[string]int `json:"-"`
	// Lag is how late requests were sent, in milliseconds of our time.
	Lag Distribution `json:"-"`
	// Samples are what the figures are made of.
	Samples []Sample `json:"-"`
	// FirstError is the first error, nil if there was none.
	FirstError error `json:"-"`
}

// Figures are those that policies are compared by.
type Figures struct {
	// CachedTokenRatio is the share of the prompt tokens that engines found in their caches.
	CachedTokenRatio float64 `json:"cached_token_ratio"`
	// TTFT, TPOT and Latency are of the calls that did not fail, TPOT of those with more than one token.
	TTFT    Distribution `json:"ttft_ms"`
	TPOT    Distribution `json:"tpot_ms"`
	Latency Distribution `json:"latency_ms"`
	// Goodput is the share of the requests that were good by the Targets; one that failed was not.
	Goodput float64 `json:"goodput"`
	// OutputTokensPerS is over the time from the first arrival to the last end.
	OutputTokensPerS float64 `json:"output_tokens_per_s"`
	// MaxOverMeanLoad is the computed prompt tokens of the busiest replica over the mean of all.
	MaxOverMeanLoad float64 `json:"max_over_mean_load"`
	// RequestsCV is the coefficient of variation, over the replicas, of the requests that they hold, in the mean of the
	// arrivals.
	RequestsCV float64 `json:"requests_cv"`
	// FollowUpsHome is the share of the later requests of sessions that are sent to the replica of the first.
	FollowUpsHome float64 `json:"follow_ups_home"`
	// FollowUpsCached is the share of the prompt tokens of these requests that engines found in their caches.
	FollowUpsCached float64 `json:"follow_ups_cached"`
}

// Simulated is what only the simulator measures.
type Simulated struct {
	// Preemptions counts how often measured requests lost their place in an engine for lack of memory.
	Preemptions int `json:"preemptions"`
	Balance
	// Spread is there with several seeds.
	Spread *Spread `json:"spread,omitempty"`
}

// Balance is how policies spread requests, seen from the engines.
type Balance struct {
	// KVImbalance is the KV cache that requests held on the busiest replica over the mean of all, in the mean of
	// the time after the warm-up.
	KVImbalance float64 `json:"kv_imbalance"`
	// KVCV is the coefficient of variation, over the replicas, of the KV cache that they hold, in the mean of the
	// decisions.
	KVCV float64 `json:"kv_cv"`
	// EndedKV is the share of the KV caches that holds prompts of sessions whose last request has ended.
	EndedKV float64 `json:"ended_kv"`
	// RegretMS is the mean of the estimated TTFT on the chosen replica less that on the best one.
	RegretMS float64 `json:"regret_ms"`
	// Split is the share of the requests that one replica prefilled and another one decoded.
	Split float64 `json:"split"`
}

// Spread is the largest figure of any seed less the smallest.
type Spread struct {
	Figures
	Balance
}

// What a request must keep to count as good by default.
const (
	GoodTTFT = 5 * time.Second
	GoodTPOT = 100 * time.Millisecond
)

// Targets are what a request must keep to count as good; 0 means GoodTTFT or GoodTPOT.
type Targets struct{ TTFT, TPOT time.Duration }

// Full are the targets with the defaults filled in.
func (t Targets) Full() Targets { return Targets{cmp.Or(t.TTFT, GoodTTFT), cmp.Or(t.TPOT, GoodTPOT)} }

// Good reports whether a request that took this long was good.
func (t Targets) Good(ttft, tpot time.Duration) bool {
	t = t.Full()
	return ttft <= t.TTFT && tpot <= t.TPOT
}

// Distribution describes a sample of numbers; all are 0 for an empty one.
type Distribution struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// Describe sorts the numbers and describes them. Percentiles are by nearest rank: the smallest number that
// at least this share of the sample does not exceed.
func Describe(xs []float64) Distribution {
	if len(xs) == 0 {
		return Distribution{}
	}
	slices.Sort(xs)
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	rank := func(p int) float64 { return xs[(len(xs)*p+99)/100-1] }
	return Distribution{Mean: sum / float64(len(xs)), P50: rank(50), P90: rank(90), P99: rank(99)}
}

// Summarize computes the figures of one policy. Replicas is the size of the fleet, 0 if it is not known: then
// replicas that got nothing do not count in the mean load.
func Summarize(policy string, replicas int, samples []Sample, targets Targets) Result {
	r := Result{Policy: policy, Decisions: map[string]int{}, Loads: map[string]int{}, Samples: samples}
	var ttft, tpot, latency, lag []float64
	var prompt, cached, output, good int
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for i := range samples {
		s := &samples[i]
		if s.Err != nil {
			r.Errors++
			if r.FirstError == nil {
				r.FirstError = s.Err
			}
		}
		if s.WarmUp {
			continue
		}
		r.Requests++
		lag = append(lag, ms(s.Lag))
		if s.Reason != "" {
			r.Decisions[string(s.Reason)]++
		}
		if s.Replica != "" {
			r.Loads[s.Replica] += s.Computed
		}
		first, last = min(first, s.At), max(last, s.At+s.Latency)
		if s.Err != nil {
			continue
		}
		ttft, latency = append(ttft, ms(s.TTFT)), append(latency, ms(s.Latency))
		if s.Output > 1 {
			tpot = append(tpot, ms(s.TPOT))
		}
		prompt, cached, output = prompt+s.Prompt, cached+s.Cached, output+s.Output
		if targets.Good(s.TTFT, s.TPOT) {
			good++
		}
	}
	r.TTFT, r.TPOT, r.Latency, r.Lag = Describe(ttft), Describe(tpot), Describe(latency), Describe(lag)
	r.CachedTokenRatio = share(float64(cached), float64(prompt))
	r.Goodput = share(float64(good), float64(r.Requests))
	r.OutputTokensPerS = share(float64(output), (last - first).Seconds())
	r.MaxOverMeanLoad = maxOverMean(slices.Collect(maps.Values(r.Loads)), replicas)
	r.RequestsCV = requestsCV(samples, max(replicas, len(r.Loads)))
	r.FollowUpsHome, r.FollowUpsCached = followUps(samples)
	return r
}

// Variation is what a coefficient of variation is made of.
type Variation struct{ n, sum, squares float64 }

// Add adds a number.
func (v *Variation) Add(x int) {
	v.n++
	v.sum += float64(x)
	v.squares += float64(x) * float64(x)
}

// Coefficient is the standard deviation over the mean; 0 where all are 0.
func (v *Variation) Coefficient() float64 {
	if v.sum == 0 {
		return 0
	}
	return math.Sqrt(max(v.n*v.squares-v.sum*v.sum, 0)) / v.sum
}

// requestsCV is the coefficient of variation, over so many replicas, of the requests that each holds, in the mean of the
// arrivals after the warm-up.
func requestsCV(samples []Sample, replicas int) float64 {
	type event struct {
		at       time.Duration
		of       *Sample
		requests int // 1 = it is sent, -1 = it ends
	}
	var events []event
	for i := range samples {
		if s := &samples[i]; s.Replica != "" && s.Latency > s.Waited {
			events = append(events, event{s.At + s.Waited, s, 1}, event{s.At + s.Latency, s, -1})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.requests, b.requests))
	})
	held, of := make(map[string]int), Variation{n: float64(replicas)}
	arrivals, sum := 0, 0.0
	for _, e := range events {
		if e.requests == 1 && !e.of.WarmUp {
			arrivals++
			sum += of.Coefficient()
		}
		before := float64(held[e.of.Replica])
		held[e.of.Replica] += e.requests
		now := float64(held[e.of.Replica])
		of.sum, of.squares = of.sum+now-before, of.squares+now*now-before*before
	}
	return share(sum, float64(arrivals))
}

// followUps are the share of the measured requests of a session, but for its first, that went where the first did, and
// the share of their prompt tokens that was cached there.
func followUps(samples []Sample) (atHome, cached float64) {
	home := make(map[string]string)
	later, there, tokens, found := 0, 0, 0, 0
	for i := range samples {
		s := &samples[i]
		if s.Session == "" || s.Replica == "" {
			continue
		}
		first, known := home[s.Session]
		if !known {
			home[s.Session] = s.Replica
		} else if !s.WarmUp {
			later++
			tokens, found = tokens+s.Prompt, found+s.Cached
			if s.Replica == first {
				there++
			}
		}
	}
	return share(float64(there), float64(later)), share(float64(found), float64(tokens))
}

// maxOverMean is the largest over the mean of n, of which those not given are 0; 0 if nothing was computed.
func maxOverMean(loads []int, n int) float64 {
	sum := 0
	for _, l := range loads {
		sum += l
	}
	if sum == 0 {
		return 0
	}
	return float64(slices.Max(loads)) * float64(max(n, len(loads))) / float64(sum)
}

// share is a/b, 0 if b is not positive.
func share(a, b float64) float64 {
	if !(b > 0) {
		return 0
	}
	return a / b
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
