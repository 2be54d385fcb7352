package chaos

import (
	"time"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

// backAt is the share of the calm's hit ratio at which it counts as back.
const backAt = 0.95

// window is what happened in some calls that followed each other.
type window struct {
	cached, prompt int
	served         map[string]int // calls by replica
	computed       map[string]int // prompt tokens, likewise
	n              int
}

func (w *window) ratio() float64 {
	if w.prompt == 0 {
		return 0
	}
	return float64(w.cached) / float64(w.prompt)
}

// uneven is the busiest replica's calls over the mean of so many.
func (w *window) uneven(replicas int) float64 {
	if w.n == 0 {
		return 0
	}
	return float64(most(w.served)*replicas) / float64(w.n)
}

func windowOf(calls []Call) window {
	w := window{served: map[string]int{}, computed: map[string]int{}}
	for i := range calls {
		c := &calls[i]
		if c.Outcome != Served {
			continue
		}
		w.n++
		w.cached += c.Cached
		w.prompt += c.Prompt
		w.served[c.Replica]++
		w.computed[c.Replica] += c.Prompt - c.Cached
	}
	return w
}

// most is the largest of some figures by replica, 0 if there is none.
func most(of map[string]int) (n int) {
	for _, x := range of {
		n = max(n, x)
	}
	return n
}

// windows cuts calls in pieces of n; what is left over is dropped.
func windows(calls []Call, n int) (ws []window) {
	for ; len(calls) >= n; calls = calls[n:] {
		ws = append(ws, windowOf(calls[:n]))
	}
	return ws
}

// recovery finds out when load and hit ratio were back. A window is half a round.
func (s *stage) recovery(r *Result, calls []Call) {
	size := max(s.Sessions/2, 1)
	var before, after []Call
	for _, c := range byStart(calls) {
		switch {
		case c.Start >= s.calm && c.Start < s.harm:
			before = append(before, c)
		case c.Start >= s.back:
			after = append(after, c)
		}
	}
	calm, later := windowOf(before), windows(after, size)
	if len(before) == 0 || len(later) == 0 {
		return
	}
	r.CachedBefore, r.CachedAfter = calm.ratio(), later[len(later)-1].ratio()
	worst := 0.0
	for _, w := range windows(before, size) {
		worst = max(worst, w.uneven(r.Replicas))
	}
	at := func(i int) float64 { return (after[i*size].Start - s.back).Seconds() }
	r.LoadBack, r.CacheBack, r.Refilled = -1, -1, -1
	for i := range later {
		if later[i].uneven(r.Replicas) <= worst {
			r.LoadBack = at(i)
			break
		}
	}
	// The ratio may fall once the sessions return: it is back when it stays so.
	for i := len(later) - 1; i >= 0 && later[i].ratio() >= backAt*r.CachedBefore; i-- {
		r.CacheBack = at(i)
		r.Refilled = most(windowOf(after[:i*size]).computed)
	}
}

// refill is how long an engine needs to compute as many tokens as its cache holds, when it does nothing else.
func (s *stage) refill() time.Duration {
	const pass = 8192 // tokens, the budget of large GPUs
	took := s.passTime(enginesim.Work{Prompt: pass})
	return time.Duration(float64(s.KVTokens) / pass * float64(took) / s.Speed)
}

// tokenTime is how long a token takes on an engine that does nothing else, in its own time.
func (s *stage) tokenTime() time.Duration { return s.passTime(enginesim.Work{Decodes: 1}) }

func (s *stage) passTime(w enginesim.Work) time.Duration {
	p, _ := enginesim.FindPreset(s.Preset) // no engine starts with a wrong one
	return p.Pass(w)
}
