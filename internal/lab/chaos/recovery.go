package chaos

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

// backAt is the share of the calm's hit ratio at which it counts as back.
const backAt = 0.95

// hitRatio is the share of the prompt tokens of served calls that was cached.
func hitRatio(calls []Call) float64 {
	cached, prompt := 0, 0
	for i := range calls { // others have no tokens
		cached, prompt = cached+calls[i].Cached, prompt+calls[i].Prompt
	}
	return float64(cached) / float64(max(prompt, 1))
}

// busiest is the largest sum of a figure over the served calls of a replica, and the sum over all replicas.
func busiest(calls []Call, figure func(*Call) int) (most, total int) {
	by := map[string]int{}
	for i := range calls {
		if c := &calls[i]; c.Outcome == Served {
			by[c.Replica] += figure(c)
			total += figure(c)
			most = max(most, by[c.Replica])
		}
	}
	return most, total
}

// uneven is the busiest replica's calls over the mean of so many replicas.
func uneven(calls []Call, replicas int) float64 {
	most, total := busiest(calls, func(*Call) int { return 1 })
	return float64(most*replicas) / float64(max(total, 1))
}

// recovery finds out when load and hit ratio were back. A window is half a round.
func (s *stage) recovery(r *Result, calls []Call) {
	size := max(s.Sessions/2, 1)
	windows := func(calls []Call) [][]Call { // what is left over is dropped
		return slices.Collect(slices.Chunk(calls[:len(calls)/size*size], size))
	}
	var before, after []Call
	for _, c := range byStart(calls) {
		switch {
		case c.Start >= s.calm && c.Start < s.harm:
			before = append(before, c)
		case c.Start >= s.back:
			after = append(after, c)
		}
	}
	later := windows(after)
	if len(before) == 0 || len(later) == 0 {
		return
	}
	r.CachedBefore, r.CachedAfter = hitRatio(before), hitRatio(later[len(later)-1])
	worst := 0.0
	for _, w := range windows(before) {
		worst = max(worst, uneven(w, r.Replicas))
	}
	at := func(i int) float64 { return (later[i][0].Start - s.back).Seconds() }
	r.LoadBack, r.CacheBack, r.Refilled = -1, -1, -1
	if i := slices.IndexFunc(later, func(w []Call) bool { return uneven(w, r.Replicas) <= worst }); i >= 0 {
		r.LoadBack = at(i)
	}
	// The ratio may fall once the sessions return: it is back when it stays so.
	for i := len(later) - 1; i >= 0 && hitRatio(later[i]) >= backAt*r.CachedBefore; i-- {
		r.CacheBack = at(i)
		r.Refilled, _ = busiest(after[:i*size], func(c *Call) int { return c.Prompt - c.Cached })
	}
}

// tokenTime is how long a token takes on an engine that does nothing else, in its own time.
func (s *stage) tokenTime() time.Duration {
	p, _ := enginesim.FindPreset(s.Preset) // no engine starts with a wrong one
	return p.Pass(enginesim.Work{Decodes: 1})
}
