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
func (r *run) leading(work *enginesim.Request) (hash uint64, blocks int) {
	if n := work.PromptTokens / workload.TraceBlock; n > 1 {
		blocks = n * workload.TraceBlock / r.block
		hash = work.Hashes[blocks-1]
	}
	return hash, blocks
}

// turnOf is what a request is found by; false = it is not.
func (r *run) turnOf(f *flight, work *enginesim.Request) (key turnKey, ok bool) {
	hash, blocks := r.leading(work)
	if f.req.Session != "" {
		hash = xxh3.HashString(f.req.Session)
	}
	return turnKey{f.router, hash}, blocks > 0
}

// keep keeps the turn of a decode leg that has ended.
func (r *run) keep(f *flight, seq *enginesim.Sequence) {
	work, res := &f.legs.work, seq.Result()
	t := &turn{
		engine: r.byID[f.reservation.Decision.Replica.ID], seq: seq, until: r.now + r.hold,
		tokens: work.PromptTokens + res.OutputTokens - 1,
	}
	t.prefix, t.blocks = r.leading(work)
	r.turns.queue = append(r.turns.queue, t)
	if key, ok := r.turnOf(f, work); ok {
		t.key = key
		r.turns.of[key] = t
	}
}

// pulls has the prefill leg of a request get what is kept of the turn before, of which its prompt is the continuation.
func (r *run) pulls(f *flight, work *enginesim.Request) {
	keys := []turnKey{}
	if key, ok := r.turnOf(f, work); ok && f.req.Session != "" {
		keys = append(keys, key)
	} else if ok {
		for n := work.PromptTokens / workload.TraceBlock; n > 1; n-- { // the longest
			keys = append(keys, turnKey{f.router, work.Hashes[n*workload.TraceBlock/r.block-1]})
		}
	}
	for _, key := range keys {
		t := r.turns.of[key]
		if t == nil || t.tokens >= work.PromptTokens || work.Hashes[t.blocks-1] != t.prefix {
			continue
		}
		delete(r.turns.of, key)
		f.legs.turn = t
		work.Received, work.Transfer = t.tokens, t.engine.engine.Transfer(t.tokens)
		return
	}
}

// freeTurn frees a turn where it was kept: it has moved, or its time is over.
func (r *run) freeTurn(t *turn) {
	if t.freed {
		return
	}
	t.freed = true
	if r.turns.of[t.key] == t {
		delete(r.turns.of, t.key)
	}
	t.engine.engine.Release(r.now, t.seq)
	t.engine.due = due(t.engine.engine)
}

// nextFreed is when the next turn's time is over.
func (r *run) nextFreed() time.Duration {
	for len(r.turns.queue) > 0 {
		if t := r.turns.queue[0]; !t.freed {
			return t.until
		}
		r.turns.queue = r.turns.queue[1:]
	}
	return never
}
