package enginesim

import (
	"slices"
	"time"
)

// comes reports whether the KV of the prompt is still to come from another engine.
func (s *Sequence) comes() bool { return s.req.Received && !s.admitted }

// receive takes blocks for the whole prompt of a sequence that was just admitted. Its KV is on its way from now on.
func (e *Engine) receive(s *Sequence) {
	s.admitted = true
	for range e.missing(s, s.req.PromptTokens-s.computed) {
		id, hash, evicted := e.pool.take()
		if evicted && e.kv.on {
			e.kv.removed(hash)
		}
		s.blocks = append(s.blocks, id)
	}
	s.result.ReceivedTokens = s.req.PromptTokens - 1 - s.computed
	share := float64(s.result.ReceivedTokens) / float64(s.req.PromptTokens)
	s.arrives = e.now + time.Duration(share*float64(s.req.Transfer))
	e.coming = append(e.coming, s)
}

// arrive moves sequences whose KV has come to those that run, and stores the blocks.
func (e *Engine) arrive() {
	keep, size := e.coming[:0], e.cfg.BlockSize
	for _, s := range e.coming {
		if s.arrives > e.now {
			keep = append(keep, s)
			continue
		}
		e.stats.ReceivedTokens += s.result.ReceivedTokens
		for i := s.computed / size; i < (s.req.PromptTokens-1)/size; i++ {
			if h := s.hash(i, size); e.pool.store(s.blocks[i], h) && e.kv.on {
				e.kv.stored(s, i, h, size)
			}
		}
		s.computed = s.req.PromptTokens - 1
		e.running = append(e.running, s)
		e.events = append(e.events, Event{s, -1, false})
	}
	clear(e.coming[len(keep):])
	e.coming = keep
}

// nextArrival is when the next KV has come; now if none is on its way.
func (e *Engine) nextArrival() time.Duration {
	next := e.now
	for i, s := range e.coming {
		if i == 0 || s.arrives < next {
			next = s.arrives
		}
	}
	return next
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
