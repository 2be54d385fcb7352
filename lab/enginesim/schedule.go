package enginesim

import (
	"slices"
	"time"
)

// begin schedules a pass and starts it; with nothing to do the engine is idle.
func (e *Engine) begin() {
	var w Work
	if !e.empty { // else the pass without work goes on
		e.pool.nextPass()
	}
	budget, preempted := e.cfg.MaxBatchedTokens, false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := min(s.tokens()-s.computed, budget)
		for e.missing(s, n) > e.pool.free && s.state == running {
			e.preempt()
			preempted = true
		}
		if s.state != running {
			break // it was the last itself
		}
		e.plan(s, n, &w)
		budget -= n
	}
	for !preempted && budget > 0 && len(e.queue) > 0 && len(e.running)+len(e.coming) < e.cfg.MaxSequences {
		s := e.queue[0]
		n := e.admit(s, budget)
		if n == 0 {
			break
		}
		e.queue = e.queue[1:]
		if s.comes() {
			e.receive(s)
			continue
		}
		e.running = append(e.running, s)
		e.plan(s, n, &w)
		budget -= n
	}
	work := w.Prompt+w.Decodes > 0
	e.empty = !work && len(e.coming) > 0
	if e.busy = work || e.empty; !work {
		e.passEnd = e.nextArrival()
		return
	}
	w.KVUsed = float64(e.used()) / float64(e.pool.size())
	took := e.preset.Pass(w)
	e.passEnd = e.now + took
	e.stats.Passes++
	e.stats.Busy += took
	e.stats.ComputedTokens += w.Prompt
	e.stats.ActiveKV += took.Seconds() * float64(e.used()*e.cfg.BlockSize)
}

// missing is how many blocks a sequence needs for n more tokens.
func (e *Engine) missing(s *Sequence, n int) int {
	return (s.computed+n+e.cfg.BlockSize-1)/e.cfg.BlockSize - len(s.blocks)
}

// plan puts n tokens of a sequence in the pass: it takes the blocks they need, which are free, and stores
// those that will be full.
func (e *Engine) plan(s *Sequence, n int, w *Work) {
	e.take(s, n)
	e.store(s, s.computed+n)
	if s.decoding {
		w.decode(s.computed + n)
	} else {
		w.chunk(n, s.computed)
		s.result.ComputedTokens += n
	}
	s.chunk = n
}

// take takes the blocks that a sequence needs for n more tokens.
func (e *Engine) take(s *Sequence, n int) {
	missing := e.missing(s, n)
	s.blocks = slices.Grow(s.blocks, max(missing, 0))
	for range missing {
		id, hash, evicted := e.pool.take()
		if evicted {
			e.kv.removed(hash)
		}
		s.blocks = append(s.blocks, id)
	}
}

// store makes the blocks findable that are full with so many tokens, and were not before.
func (e *Engine) store(s *Sequence, tokens int) {
	size := e.cfg.BlockSize
	for i := s.computed / size; i < tokens/size; i++ {
		if h := s.hash(i); e.pool.store(s.blocks[i], h) {
			e.kv.stored(s, i, h)
		}
	}
}

// preempt sends the last running sequence back to the head of the queue with nothing computed. It is not yet
// in the pass: those come from the front.
func (e *Engine) preempt() {
	last := len(e.running) - 1
	s := e.running[last]
	e.running[last] = nil
	e.running = e.running[:last]
	e.free(s)
	s.state, s.computed, s.decoding = waiting, 0, false
	s.result.Preemptions++
	e.stats.Preemptions++
	e.queue = slices.Insert(e.queue, 0, s)
}

// admit pins what is cached of the head of the queue and returns how many tokens of it the pass computes; 0
// if it does not fit.
func (e *Engine) admit(s *Sequence, budget int) int {
	if e.pool.free == 0 {
		return 0
	}
	size := e.cfg.BlockSize
	most := (s.tokens() - 1) / size
	if s.req.BypassCache {
		most = 0
	}
	idle := 0 // hits that are in the LRU list
	hits := s.blocks[:0]
	for i := range most {
		id, ok := e.pool.cached[s.hash(i)]
		if !ok {
			break
		}
		if e.pool.blocks[id].refs == 0 {
			idle++
		}
		hits = append(hits, id)
	}
	cached := len(hits) * size
	n := min(s.tokens()-cached, budget)
	if s.comes() {
		n = s.req.Received - cached
	}
	if s.comes() && s.computes() && n < recomputeBelow {
		s.req.Received, n = 0, min(s.tokens()-cached, budget)
		e.spared = append(e.spared, s)
	}
	if need := (cached+n+size-1)/size - len(hits) + idle; need > e.pool.free {
		s.blocks = hits[:0]
		return 0
	}
	for _, id := range hits {
		e.pool.pin(id)
	}
	s.blocks, s.computed, s.state = hits, cached, running
	if !s.admitted {
		s.result.CachedTokens = cached
		s.admitted = s.req.Received == 0
		if s.computes() {
			e.stats.PromptTokens += s.req.PromptTokens
			e.stats.CachedTokens += cached
		}
	}
	return n
}

// kvLog collects the changes of a pass for the listener, if there is one.
type kvLog struct {
	to     Listener
	events []KVEvent
}

// grow returns the last event if the next change continues it, else a new one.
func (l *kvLog) grow(same func(*KVEvent) bool) *KVEvent {
	if n := len(l.events); n == 0 || !same(&l.events[n-1]) {
		l.events = append(l.events, KVEvent{})
	}
	return &l.events[len(l.events)-1]
}

func (l *kvLog) removed(hash uint64) {
	if l.to == nil {
		return
	}
	e := l.grow(func(e *KVEvent) bool { return !e.Stored })
	e.Hashes = append(e.Hashes, hash)
}

func (l *kvLog) stored(s *Sequence, i int, hash uint64) {
	if l.to == nil {
		return
	}
	e := l.grow(func(e *KVEvent) bool { return e.Stored && e.Seq == s && e.First+len(e.Hashes) == i })
	if !e.Stored {
		*e = KVEvent{Stored: true, Seq: s, First: i}
		if i > 0 {
			e.Parent = s.hash(i - 1)
		}
	}
	e.Hashes = append(e.Hashes, hash)
}

func (l *kvLog) publish(at time.Duration) {
	if len(l.events) > 0 {
		l.to.KVEvents(at, l.events)
		clear(l.events) // let go of sequences
		l.events = l.events[:0]
	}
}
