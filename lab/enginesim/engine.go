package enginesim

import (
	"errors"
	"slices"
	"time"
)

// Errors of Submit.
var (
	// ErrTooLong is a request that could never fit.
	ErrTooLong = errors.New("enginesim: request is too long")
	// ErrInvalid is a request that contradicts itself.
	ErrInvalid = errors.New("enginesim: invalid request")
)

// Event is one output token.
type Event struct {
	// Seq is the sequence that gave it.
	Seq *Sequence
	// Index is its place in the output; 0 is the first token. -1 is no token: the KV that another engine computed has
	// come, or is not needed.
	Index int
	// Done: it is the last.
	Done bool
}

// KVEvent is a change of what the cache holds.
type KVEvent struct {
	// Stored: Hashes were stored, else they were removed.
	Stored bool
	// Hashes are chained block hashes; of a store, each is the prefix of the next.
	Hashes []uint64
	// Parent is the hash before the first of a store, 0 where First is 0.
	Parent uint64
	// Seq is the sequence that stored, First the place of the first block in it.
	Seq   *Sequence
	First int
}

// Listener receives changes of the cache. It is called inside Step, at the end of the pass that made the
// changes, in their order. It must not keep the slices or call the engine.
type Listener interface {
	KVEvents(at time.Duration, events []KVEvent)
}

// Load is what an engine has to do.
type Load struct {
	// Running and Waiting count requests.
	Running, Waiting int
	// UsedTokens is the KV cache that running requests hold, TotalTokens all of it.
	UsedTokens, TotalTokens int
	// MaxSequences is how many requests run at once.
	MaxSequences int
	// Held counts ended requests whose blocks wait for Release; UsedTokens has their tokens too.
	Held int
}

// Stats are counters since the start.
type Stats struct {
	// Submitted, Finished and Aborted count requests.
	Submitted, Finished, Aborted int
	// Passes counts passes, Busy is the time spent in them.
	Passes int
	Busy   time.Duration
	// Preemptions counts preempted sequences.
	Preemptions int
	// PromptTokens and CachedTokens count the prompts of admitted requests and what was found of them.
	PromptTokens, CachedTokens int
	// ReceivedTokens counts prompt tokens whose KV came from other engines. Decode legs do not count above.
	ReceivedTokens int
	// ComputedTokens counts tokens computed in prefill, again after a preemption included.
	ComputedTokens int
	// OutputTokens counts tokens given.
	OutputTokens int
	// ActiveKV is the time integral of Load.UsedTokens, in token-seconds.
	ActiveKV float64
}

// Engine is one engine in virtual time. Time is a duration since the start and never runs back. Not safe for
// concurrent use.
//
// A host calls Submit and Abort when they happen and Step whenever NextStep is due, all in the order of time;
// of what happens at the same moment, Step first.
type Engine struct {
	cfg     Config
	preset  Preset
	pool    *pool
	running []*Sequence
	queue   []*Sequence // that wait, the oldest first
	coming  []*Sequence // admitted, their KV is on its way
	spared  []*Sequence // admitted in the pass under way, what was to come is not needed
	held    []*Sequence // ended, their blocks wait for Release
	busy    bool
	empty   bool // the pass under way has no work: it ends when KV has come
	now     time.Duration
	passEnd time.Duration
	stats   Stats
	events  []Event
	kv      kvLog
}

// New makes an engine.
func New(c Config) (*Engine, error) {
	c, p, err := c.resolve()
	if err != nil {
		return nil, err
	}
	return &Engine{cfg: c, preset: p, pool: newPool(c.KVTokens / c.BlockSize), kv: kvLog{to: c.Listener}}, nil
}

// Config is the engine's config with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Transfer is how long it takes to move the KV of so many tokens to another engine.
func (e *Engine) Transfer(tokens int) time.Duration { return e.preset.Transfer(tokens) }

// Now is the time of the last call.
func (e *Engine) Now() time.Duration { return e.now }

// Stats are the counters.
func (e *Engine) Stats() Stats { return e.stats }

// Load is the present load.
func (e *Engine) Load() Load {
	return Load{
		Running: len(e.running) + len(e.coming), Waiting: len(e.queue), UsedTokens: e.used() * e.cfg.BlockSize,
		TotalTokens: e.cfg.KVTokens, MaxSequences: e.cfg.MaxSequences, Held: len(e.held),
	}
}

// Submit accepts a request. An idle engine begins a pass with it at once, else it waits for the next.
func (e *Engine) Submit(now time.Duration, r Request) (*Sequence, error) {
	if err := r.check(&e.cfg); err != nil {
		return nil, err
	}
	e.now = max(e.now, now)
	s := &Sequence{req: r, size: e.cfg.BlockSize, found: e.leading(&r)}
	s.result = Result{Arrival: e.now, PromptTokens: r.PromptTokens}
	e.stats.Submitted++
	e.queue = append(e.queue, s)
	e.wake()
	return s, nil
}

// Abort ends a sequence and frees what it holds. One that has ended stays as it is. The pass under way takes
// as long as it takes.
func (e *Engine) Abort(now time.Duration, s *Sequence) {
	e.now = max(e.now, now)
	if s.state == finished || s.state == aborted {
		return
	}
	for _, all := range []*[]*Sequence{&e.queue, &e.running, &e.coming} {
		*all = slices.DeleteFunc(*all, func(one *Sequence) bool { return one == s })
	}
	e.free(s)
	s.state = aborted
	s.result.End, s.result.Aborted = e.now, true
	e.stats.Aborted++
}

// NextStep is when the pass under way ends; false if the engine is idle.
func (e *Engine) NextStep() (time.Duration, bool) { return e.passEnd, e.busy }

// Step ends the pass under way if it is due and begins the next. It returns the tokens that the pass gave;
// the slice is valid until the next call. It does one pass: call it until NextStep is in the future.
func (e *Engine) Step(now time.Duration) []Event {
	if !e.busy || e.passEnd > now {
		return nil
	}
	e.now = max(e.now, e.passEnd)
	e.events = e.events[:0]
	for _, s := range e.spared {
		e.events = append(e.events, Event{s, -1, false})
	}
	e.spared = e.spared[:0]
	keep := e.running[:0]
	for _, s := range e.running {
		s.computed += s.chunk
		if s.chunk == 0 || s.computed < s.tokens() {
			s.chunk = 0
			keep = append(keep, s)
			continue
		}
		s.chunk, s.decoding = 0, true
		done := e.give(s)
		if !done {
			keep = append(keep, s)
		}
		e.events = append(e.events, Event{s, s.generated - 1, done})
	}
	clear(e.running[len(keep):])
	e.running = keep
	e.arrive()
	e.empty = false
	e.kv.publish(e.now)
	e.begin()
	return e.events
}

// give makes a sequence's next token and reports whether it was the last.
func (e *Engine) give(s *Sequence) bool {
	if s.generated == 0 {
		s.result.FirstToken = e.now
	}
	s.generated++
	s.result.OutputTokens = s.generated
	e.stats.OutputTokens++
	if s.generated < s.req.OutputTokens {
		return false
	}
	s.state = finished
	s.result.End = e.now
	e.stats.Finished++
	if s.req.Hold {
		e.held = append(e.held, s)
	} else {
		e.free(s)
	}
	return true
}

// free returns a sequence's blocks, the tail first, so that the head is evicted last.
func (e *Engine) free(s *Sequence) {
	for _, id := range slices.Backward(s.blocks) {
		e.pool.release(id)
	}
	s.blocks = nil
}

// Published is how many leading blocks of a prompt the cache holds by the events published up to now. What
// the pass under way stores and evicts is published at its end.
func (e *Engine) Published(hashes []uint64) int {
	n := 0
	for n < len(hashes) && e.pool.sent(hashes[n]) {
		n++
	}
	return n
}

// used is the number of pinned blocks.
func (e *Engine) used() int { return e.pool.size() - e.pool.free }
