package sim

import (
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
	"github.com/warmpath/warmpath/internal/router"
)

// turns are what decode engines keep of the last turns, for the prefill legs of the next ones.
type turns struct {
	hold  time.Duration // how long an engine keeps one; 0 = none does
	block int           // of an engine, in tokens
	of    map[turnKey]*turn
	queue []*turn // that were kept, the oldest first
}

// A turnKey is what one client finds a turn by: the session, or where a trace has none the whole blocks of the prompt.
type turnKey struct {
	client *router.Router
	hash   uint64
}

// A turn is the KV of a prompt and of its output.
type turn struct {
	engine *machine
	seq    *enginesim.Sequence
	until  time.Duration
	key    turnKey
	tokens int
	prefix uint64 // the hash of the prompt's whole blocks
	blocks int    // engine blocks that it is of
	freed  bool
}

// leading returns the hash of the whole blocks of a prompt, as a trace has them, and how many blocks of an engine they
// are. One block is the system prompt of all: it is none.
func (t *turns) leading(work *enginesim.Request) (hash uint64, blocks int) {
	if n := work.PromptTokens / workload.TraceBlock; n > 1 {
		blocks = n * workload.TraceBlock / t.block
		hash = work.Hashes[blocks-1]
	}
	return hash, blocks
}

// key is what a request is found by; false = it is not.
func (t *turns) key(f *flight, work *enginesim.Request) (key turnKey, ok bool) {
	hash, blocks := t.leading(work)
	if f.req.Session != "" {
		hash = xxh3.HashString(f.req.Session)
	}
	return turnKey{f.router, hash}, blocks > 0
}

// keep keeps the turn of a decode leg that has ended on an engine.
func (t *turns) keep(f *flight, on *machine, seq *enginesim.Sequence) {
	work, res := &f.legs.work, seq.Result()
	kept := &turn{
		engine: on, seq: seq, until: res.End + t.hold, tokens: work.PromptTokens + res.OutputTokens - 1,
	}
	kept.prefix, kept.blocks = t.leading(work)
	t.queue = append(t.queue, kept)
	if key, ok := t.key(f, work); ok {
		kept.key = key
		t.of[key] = kept
	}
}

// pulls has the prefill leg of a request get what is kept of the turn before, of which its prompt is the continuation.
func (t *turns) pulls(f *flight, work *enginesim.Request) {
	key, ok := t.key(f, work)
	kept := t.of[key]
	for n := work.PromptTokens / workload.TraceBlock; ok && kept == nil && f.req.Session == "" && n > 1; n-- {
		kept = t.of[turnKey{f.router, work.Hashes[n*workload.TraceBlock/t.block-1]}] // the longest
	}
	if kept == nil || kept.tokens >= work.PromptTokens || work.Hashes[kept.blocks-1] != kept.prefix {
		return
	}
	delete(t.of, kept.key)
	f.legs.turn = kept
	work.Received, work.Transfer = kept.tokens, kept.engine.engine.Transfer(kept.tokens)
}

// free frees a turn where it was kept: it has moved, or its time is over.
func (t *turns) free(now time.Duration, kept *turn) {
	if kept.freed {
		return
	}
	kept.freed = true
	if t.of[kept.key] == kept {
		delete(t.of, kept.key)
	}
	kept.engine.engine.Release(now, kept.seq)
	kept.engine.due = due(kept.engine.engine)
}

// next is when the next turn's time is over.
func (t *turns) next() time.Duration {
	for len(t.queue) > 0 {
		if first := t.queue[0]; !first.freed {
			return first.until
		}
		t.queue = t.queue[1:]
	}
	return never
}
