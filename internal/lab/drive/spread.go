package drive

import (
	"cmp"
	"math"
	"slices"
	"time"
)

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
