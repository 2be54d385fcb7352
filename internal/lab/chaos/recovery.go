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

func (w *window) add(c *Call) {
	if c.Outcome != Served {
		return
	}
	w.n++
	w.cached += c.Cached
	w.prompt += c.Prompt
	w.served[c.Replica]++
	w.computed[c.Replica] += c.Prompt - c.Cached
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
		w.add(&calls[i])
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
func windows(calls []Call, n int) (ws []window, begins []int) {
	for i := 0; i+n <= len(calls); i += n {
		ws, begins = append(ws, windowOf(calls[i:i+n])), append(begins, i)
	}
	return ws, begins
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
	whole, _ := windows(before, max(len(before), 1))
	quiet, _ := windows(before, size)
	later, begins := windows(after, size)
	if len(whole) == 0 || len(later) == 0 {
		return
	}
	r.CachedBefore, r.CachedAfter = whole[0].ratio(), later[len(later)-1].ratio()
	worst := 0.0
	for i := range quiet {
		worst = max(worst, quiet[i].uneven(r.Replicas))
	}
	at := func(i int) float64 { return (after[begins[i]].Start - s.back).Seconds() }
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
		r.Refilled = most(windowOf(after[:begins[i]]).computed)
	}
}

// prefillRate is how many tokens a second an engine computes when it does nothing else, in its own time.
func prefillRate(preset string) float64 {
	const pass = 8192 // tokens, the budget of large GPUs
	p := presetOf(preset)
	return pass / p.Pass(enginesim.Work{Prompt: pass}).Seconds()
}

// tokenTime is how long a token takes on an engine that does nothing else, in its own time.
func tokenTime(preset string) time.Duration {
	p := presetOf(preset)
	return p.Pass(enginesim.Work{Decodes: 1})
}

func presetOf(name string) *enginesim.Preset {
	for i := range enginesim.Presets {
		if p := &enginesim.Presets[i]; p.Name == name {
			return p
		}
	}
	return &enginesim.Presets[0]
}
