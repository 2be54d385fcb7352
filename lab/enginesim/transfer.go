package enginesim

import (
	"cmp"
	"slices"
	"time"
)

// recomputeBelow is vLLM's kv_recompute_threshold for what a prefill engine gets from a decode engine.
const recomputeBelow = 64

// comes reports whether KV of the prompt is still to come from another engine.
func (s *Sequence) comes() bool { return s.req.Received > 0 && !s.admitted }

// computes reports whether it computes a part of its prompt besides the last token.
func (s *Sequence) computes() bool { return s.req.Received < s.req.PromptTokens }

// here is how much of the prompt is computed once its KV has come.
func (s *Sequence) here() int { return min(s.req.Received, s.req.PromptTokens-1) }

// receive takes blocks for the KV of a sequence that was just admitted. It is on its way from now on.
func (e *Engine) receive(s *Sequence) {
	s.admitted = true
	e.take(s, s.req.Received-s.computed)
	s.result.ReceivedTokens = s.here() - s.computed
	share := float64(s.result.ReceivedTokens) / float64(s.req.Received)
	s.arrives = e.now + time.Duration(share*float64(s.req.Transfer))
	e.coming = append(e.coming, s)
}

// arrive moves sequences whose KV has come to those that run, and stores the blocks.
func (e *Engine) arrive() {
	keep := e.coming[:0]
	for _, s := range e.coming {
		if s.arrives > e.now {
			keep = append(keep, s)
			continue
		}
		e.stats.ReceivedTokens += s.result.ReceivedTokens
		e.store(s, s.here())
		s.computed = s.here()
		e.running = append(e.running, s)
		e.events = append(e.events, Event{s, -1, false})
	}
	clear(e.coming[len(keep):])
	e.coming = keep
}

// nextArrival is when the next KV has come; now if none is on its way.
func (e *Engine) nextArrival() time.Duration {
	if len(e.coming) == 0 {
		return e.now
	}
	return slices.MinFunc(e.coming, func(a, b *Sequence) int { return cmp.Compare(a.arrives, b.arrives) }).arrives
}

// Release frees the blocks of a sequence that has ended and whose request had Hold. Else it does nothing.
func (e *Engine) Release(now time.Duration, s *Sequence) {
	i := slices.Index(e.held, s)
	if i < 0 {
		return
	}
	e.now = max(e.now, now)
	e.held = slices.Delete(e.held, i, i+1)
	e.free(s)
	e.wake()
}

// wake begins a pass if none is under way, or only one that waits for KV.
func (e *Engine) wake() {
	if !e.busy || e.empty {
		e.begin()
	}
}
