package enginesim

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// Estimate is how long a request submitted now would wait for its first token: the rest of the pass under way, the
// prefill of all requests before it and its own, in passes beside the sequences that decode, and the passes until
// enough sequences have ended to give back the blocks that these prompts need. It reads the true outputs. Requests that
// come later and preemptions do not count.
func (e *Engine) Estimate(now time.Duration, r *Request) time.Duration {
	var decodes, all Work
	need := 0
	for _, s := range e.running {
		if s.decoding {
			decodes.decode(s.tokens())
			continue
		}
		all.chunk(s.tokens()-s.computed-s.chunk, s.computed+s.chunk)
		need += e.blocks(s.tokens()) - len(s.blocks)
	}
	size := e.cfg.BlockSize
	for _, s := range e.queue {
		all.chunk(s.tokens()-s.found*size, s.found*size)
		need += e.blocks(s.tokens()) - s.found
	}
	hits := e.leading(r)
	all.chunk(r.PromptTokens-hits*size, hits*size)
	took := e.prefill(all, decodes)
	if need+e.blocks(r.PromptTokens) > e.pool.free {
		took += e.blocked(r, hits)
	}
	if e.busy {
		took += max(e.passEnd-now, 0)
	}
	return took
}

// blocks is how many blocks so many tokens need.
func (e *Engine) blocks(tokens int) int { return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize }

// leading is how many leading blocks of a prompt are cached or going to be by requests before it, at most all but the
// last token. Heads of prompts outlive their tails, so bisection finds it.
func (e *Engine) leading(r *Request) (n int) {
	if r.BypassCache {
		return 0
	}
	most := r.Hashes[:(r.PromptTokens-1)/e.cfg.BlockSize]
	n = sort.Search(len(most), func(i int) bool {
		_, ok := e.pool.cached[most[i]]
		return !ok
	})
	for _, all := range [][]*Sequence{e.running, e.queue} {
		for _, s := range all {
			rest := most[n:]
			theirs := s.req.Hashes[min(n, len(s.req.Hashes)):]
			n += sort.Search(min(len(rest), len(theirs)), func(i int) bool { return rest[i] != theirs[i] })
		}
	}
	return n
}

// prefill is how long this prefill takes in passes that carry these decodes.
func (e *Engine) prefill(w, decodes Work) time.Duration {
	room := max(e.cfg.MaxBatchedTokens-decodes.Decodes, 1)
	passes := max((w.Prompt+room-1)/room, 1)
	decodes.Prompt, decodes.Pairs = w.Prompt/passes, w.Pairs/float64(passes)
	decodes.KVUsed = float64(e.used()) / float64(e.pool.size())
	return time.Duration(passes) * e.preset.Pass(decodes)
}

// blocked is how long a request waits for blocks, with this many leading ones shared.
func (e *Engine) blocked(r *Request, hits int) time.Duration {
	var decodes Work
	m := memory{free: e.pool.free, size: e.cfg.BlockSize}
	for _, s := range e.running {
		decodes.decode(s.tokens())
		all := e.blocks(s.tokens())
		m.free -= all - len(s.blocks)
		m.run(s.req.OutputTokens-s.generated, all-s.result.CachedTokens/e.cfg.BlockSize) // the cached ones are shared
	}
	for _, s := range e.queue {
		m.admit(e.blocks(s.tokens())-s.found, s.req.OutputTokens-s.generated)
	}
	need := e.blocks(r.PromptTokens)
	for _, h := range r.Hashes[:hits] {
		if id, ok := e.pool.cached[h]; !ok || e.pool.blocks[id].refs > 0 {
			need-- // another request holds it or is going to
		}
	}
	m.admit(need, r.OutputTokens)
	return time.Duration(m.passes) * e.preset.Pass(decodes)
}

// memory is the blocks of an engine so many passes from now. What runs grows by a token a pass.
type memory struct {
	passes, free, size int
	running            []stay // sorted by end
	begins             int    // sum over running
}

// stay is a sequence from one pass to another, with the blocks that it gives back but for what it grew.
type stay struct{ begin, end, blocks int }

func (m *memory) run(passes, blocks int) {
	x := stay{m.passes, m.passes + passes, blocks}
	at, _ := slices.BinarySearchFunc(m.running, x, func(a, b stay) int { return cmp.Compare(a.end, b.end) })
	m.running = slices.Insert(m.running, at, x)
	m.begins += x.begin
}

// admit goes on to the pass in which a sequence that needs these blocks fits, and runs it.
func (m *memory) admit(blocks, passes int) {
	for len(m.running) > 0 && m.free-(len(m.running)*m.passes-m.begins)/m.size < blocks {
		x := m.running[0]
		m.running = m.running[1:]
		m.passes, m.free, m.begins = x.end, m.free+x.blocks, m.begins-x.begin
	}
	m.free -= blocks
	m.run(passes, blocks)
}
