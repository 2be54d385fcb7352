package kvevents

import (
	"context"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// MaxBlockTokens is the largest block that is understood.
const MaxBlockTokens = 256

// translator turns the events of one rank of one replica into changes of chained hashes. It belongs to one goroutine.
type translator struct {
	replica string
	rank    int
	model   string
	coarse  bool
	sizes   *sizes

	size    int // tokens in a block; 0 until the first is stored
	blocks  blocks
	orphans orphans
	groups  map[int]bool // whether a group has full attention, where events have it
	lower   policy.Tier  // the slowest tier that was ever reported
	changes changes
	local   []uint64 // one hash, reused
	count   counts

	// Of the message under way.
	ctx    context.Context
	tell   func([]policy.CacheChange)
	steps  int
	stores int // blocks stored
}

// workPiece is how many blocks are worked through between two looks at the context, and about how many changes are
// passed on at once.
const workPiece = 1024

// counts is what a translator has seen.
type counts struct {
	events    int64
	orphaned  int64 // stores whose parent never came
	forgotten int64 // held blocks given up to stay in the budget
	bad       Unreadable
}

func (c *counts) add(o *counts) {
	c.events += o.events
	c.orphaned += o.orphaned
	c.forgotten += o.forgotten
	c.bad.add(&o.bad)
}

func newTranslator(replica string, rank int, model string, o *Options, s *sizes) *translator {
	return &translator{
		replica: replica, rank: rank, model: model, coarse: o.Coarse, sizes: s,
		blocks: newBlocks(o.MaxBytes), groups: map[int]bool{},
	}
}

// apply takes a batch in and passes on its changes, in pieces whose slices are valid during the call. It stops when
// the context ends.
func (t *translator) apply(ctx context.Context, b *Batch, now time.Time, tell func([]policy.CacheChange)) {
	t.ctx, t.tell, t.stores = ctx, tell, 0
	t.count.bad.add(&b.Bad)
	t.orphans.expire(now, &t.count)
	for i := range b.Events {
		if !t.step() {
			return
		}
		t.event(&b.Events[i], now)
	}
	t.flush()
}

// step is called for every block; false if the context has ended.
func (t *translator) step() bool {
	if t.steps++; t.steps%workPiece != 0 {
		return true
	}
	if t.changes.n >= workPiece {
		t.flush()
	}
	return t.ctx.Err() == nil
}

// flush passes on the changes.
func (t *translator) flush() {
	if out := t.changes.finish(t.replica, t.rank, t.size); len(out) > 0 {
		t.tell(out)
	}
	t.changes.reset()
}

// clear forgets everything, as if nothing had ever come.
func (t *translator) clear(tell func([]policy.CacheChange)) {
	t.tell = tell
	t.forgetAll()
	t.flush()
	t.sizes.release(t.model, t.size)
	t.size, t.lower = 0, 0
	clear(t.groups)
}

func (t *translator) event(e *Event, now time.Time) {
	t.count.events++
	if e.Kind == Cleared {
		t.forgetAll()
		return
	}
	tier, ok := TierOf(e.Medium)
	switch {
	case !ok || e.Elsewhere:
		t.count.bad[BadMedium]++
	case !t.fullAttention(e):
		t.count.bad[BadGroup]++
	case e.Kind == Removed:
		t.remove(e, tier)
	case len(e.Tokens) == 0:
		t.move(e, tier)
	default:
		t.store(e, tier, now)
	}
}

// fullAttention reports whether the event's group is one that feeds the index.
func (t *translator) fullAttention(e *Event) bool {
	if e.Spec == "" {
		if full, known := t.groups[e.Group]; known {
			return full
		}
		return fullAttention("", e.Group)
	}
	full := fullAttention(e.Spec, e.Group)
	if len(t.groups) < maxGroups {
		t.groups[e.Group] = full
	}
	return full
}

// maxGroups bounds the groups remembered; models have a few.
const maxGroups = 64

func (t *translator) forgetAll() {
	if t.size > 0 {
		for tier := range t.lower + 1 {
			t.changes.lanes[tier][fine].clear()
			if t.superblocks() {
				t.changes.lanes[tier][coarse].clear()
			}
		}
	}
	t.blocks.reset()
	t.orphans = orphans{}
}

// superblocks reports whether coarse changes are wanted, and superblocks end where blocks do.
func (t *translator) superblocks() bool {
	return t.coarse && t.size > 0 && policy.SuperblockTokens%t.size == 0
}

// fits checks an event's block size and tokens.
func (t *translator) fits(e *Event) bool {
	switch {
	case e.BlockSize < 1 || e.BlockSize > MaxBlockTokens || len(e.Tokens) != e.BlockSize*len(e.Hashes):
		t.count.bad[BadTokens]++
		return false
	case e.Numbered && e.Adapter == "":
		t.count.bad[BadAdapter]++
		return false
	case t.size == 0 && t.sizes.claim(t.model, e.BlockSize):
		t.size = e.BlockSize
	case t.size != e.BlockSize:
		t.count.bad[BadSize]++
		return false
	}
	return true
}

func (t *translator) store(e *Event, tier policy.Tier, now time.Time) {
	if !t.fits(e) {
		return
	}
	at, ok := t.behind(e)
	if !ok {
		t.orphans.keep(e, tier, now, &t.count)
		return
	}
	t.chain(e, tier, at, nil)
	if t.orphans.waiting == 0 {
		return
	}
	parents := slices.Clone(e.Hashes)
	for i := 0; i < len(parents) && t.step(); i++ {
		for _, x := range t.orphans.adopt(parents[i]) {
			if t.adopt(x) {
				parents = append(parents, x.Hashes...)
			}
		}
	}
}

// adopt takes in an event that waited; false if its parent is not there any more.
func (t *translator) adopt(x *orphan) bool {
	gone := make([]bool, len(x.Hashes))
	for i, h := range x.Hashes {
		gone[i] = t.orphans.settle(h, x.tier)
	}
	at, ok := t.behind(&x.Event)
	if ok {
		t.chain(&x.Event, x.tier, at, gone)
	} else {
		t.count.orphaned++
	}
	return ok
}

// behind returns what an event's first block inherits; false if its parent is not known.
func (t *translator) behind(e *Event) (block, bool) {
	if !e.HasParent {
		return block{seed: uint64(kvindex.SeedFor(t.model, e.Adapter, e.Salt))}, true
	}
	i, ok := t.blocks.find(e.Parent)
	if !ok {
		return block{}, false
	}
	t.blocks.touch(i)
	p := &t.blocks.all[i]
	return block{seed: p.seed, parent: p.chained, depth: p.depth + 1}, true
}

// chain hashes the event's blocks from the one at on and holds them, but for those that are gone already. A message
// stores no more blocks than are remembered.
func (t *translator) chain(e *Event, tier policy.Tier, at block, gone []bool) {
	if e.Opaque < len(e.Hashes) {
		t.count.bad[BadContent]++
	}
	n := min(e.Opaque, t.blocks.max-t.stores)
	t.stores += n
	t.count.forgotten += int64(e.Opaque - n)
	t.reaches(tier)
	t.changes.cut()
	for i, hash := range e.Hashes[:n] {
		if !t.step() {
			return
		}
		t.local = kvindex.AppendTokens(t.local[:0], e.Tokens[i*t.size:(i+1)*t.size], t.size, kvindex.Seed(at.seed))
		at.engine, at.chained = hash, t.local[0]
		if at.depth > 0 {
			at.chained = kvindex.Chain(at.parent, at.chained)
		}
		if x := t.place(at); gone == nil || !gone[i] {
			t.hold(x, tier)
		}
		at.parent, at.depth = at.chained, at.depth+1
	}
}

// place returns the place of a block, which is new, known, or not what was known under the engine's hash.
func (t *translator) place(x block) uint32 {
	i, ok := t.blocks.find(x.engine)
	if ok && t.blocks.all[i].chained == x.chained {
		return i
	}
	if ok {
		t.forget(i)
	} else if t.blocks.full() {
		oldest := t.blocks.oldest()
		if t.blocks.all[oldest].held() {
			t.count.forgotten++
		}
		t.forget(oldest)
	}
	return t.blocks.add(x)
}

// forget gives a block up, whichever group holds it.
func (t *translator) forget(i uint32) {
	x := &t.blocks.all[i]
	for tier := range t.lower + 1 {
		if x.upTo(tier) {
			t.gone(tier, x)
		}
	}
	t.blocks.drop(i)
}

// move records a copy of known blocks on another tier.
func (t *translator) move(e *Event, tier policy.Tier) {
	t.reaches(tier)
	t.changes.cut()
	for _, hash := range e.Hashes {
		if !t.step() {
			return
		}
		if i, ok := t.blocks.find(hash); ok {
			t.hold(i, tier)
		} else {
			t.count.orphaned++
		}
	}
}

// hold adds a copy of a block to a tier. Copies beyond the counter's range are not counted: the block is given up too
// early then, never too late.
func (t *translator) hold(i uint32, tier policy.Tier) {
	x := &t.blocks.all[i]
	had := x.copies
	if x.copies[tier] < ^uint8(0) {
		x.copies[tier]++
	}
	if had[tier] == 0 {
		before := block{copies: had}
		for to := tier; to <= t.lower; to++ {
			if !before.upTo(to) {
				t.there(to, x)
			}
		}
	}
	t.blocks.touch(i)
}

func (t *translator) remove(e *Event, tier policy.Tier) {
	for _, hash := range e.Hashes {
		if !t.step() {
			return
		}
		i, ok := t.blocks.find(hash)
		if !ok || t.blocks.all[i].copies[tier] == 0 {
			t.orphans.remove(hash, tier)
			continue
		}
		x := &t.blocks.all[i]
		if x.copies[tier]--; x.copies[tier] > 0 {
			continue
		}
		for from := tier; from <= t.lower && !x.upTo(from); from++ {
			t.gone(from, x)
		}
		if !x.held() {
			t.blocks.touch(i)
		}
	}
}

// reaches makes the tier known. What is held on faster ones is on it, too, from then on.
func (t *translator) reaches(tier policy.Tier) {
	for t.lower < tier {
		t.lower++
		t.changes.cut()
		for i := t.blocks.lists[0].oldest; i != none; i = t.blocks.all[i].prev {
			if !t.step() {
				return
			}
			if x := &t.blocks.all[i]; x.upTo(t.lower) {
				t.there(t.lower, x)
			}
		}
	}
}

func (t *translator) there(tier policy.Tier, x *block) {
	t.changes.n++
	lanes := &t.changes.lanes[tier]
	lanes[fine].store(x.chained, x.depth, x.parent, 1)
	if t.ends(x) {
		step := uint32(policy.SuperblockTokens / t.size)
		lanes[coarse].store(x.chained, x.depth, lanes[coarse].last, step)
	}
}

func (t *translator) gone(tier policy.Tier, x *block) {
	t.changes.n++
	lanes := &t.changes.lanes[tier]
	lanes[fine].remove(x.chained)
	if t.ends(x) {
		lanes[coarse].remove(x.chained)
	}
}

// ends reports whether a superblock ends with this block.
func (t *translator) ends(x *block) bool {
	return t.superblocks() && (int(x.depth)+1)*t.size%policy.SuperblockTokens == 0
}
