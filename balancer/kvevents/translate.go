package kvevents

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/kvindex"
	"github.com/warmpath/warmpath/balancer/routing"
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
	groups  map[int]bool // whether a group has full attention, where events said so
	lower   routing.Tier // the slowest tier that was ever told of
	changes changes
	local   []uint64 // one hash, reused
	count   counts
}

// counts is what a translator has seen.
type counts struct {
	events    int64
	orphaned  int64 // stores whose parent never came
	forgotten int64 // held blocks given up to stay in the budget
	clears    int64 // of the engine's own
	bad       unreadable
}

func newTranslator(replica string, rank int, model string, o *Options, s *sizes) *translator {
	return &translator{
		replica: replica, rank: rank, model: model, coarse: o.Coarse, sizes: s,
		blocks: newBlocks(o.MaxBytes), groups: map[int]bool{},
	}
}

// apply takes a batch in. What it returns is valid until the next call.
func (t *translator) apply(b *batch, now time.Time) []routing.CacheChange {
	t.changes.reset()
	t.count.bad.add(&b.bad)
	t.orphans.expire(now, &t.count)
	for i := range b.events {
		t.event(&b.events[i], now)
	}
	return t.changes.finish(t.replica, t.rank, t.size)
}

// clear forgets everything, as if nothing had ever come.
func (t *translator) clear() []routing.CacheChange {
	t.changes.reset()
	t.forgetAll()
	out := t.changes.finish(t.replica, t.rank, t.size)
	t.sizes.release(t.model, t.size)
	t.size, t.lower = 0, 0
	clear(t.groups)
	return out
}

func (t *translator) event(e *event, now time.Time) {
	t.count.events++
	if e.kind == cleared {
		t.count.clears++
		t.forgetAll()
		return
	}
	tier, ok := tierOf(e.medium)
	switch {
	case !ok || e.elsewhere:
		t.count.bad[badMedium]++
	case !t.fullAttention(e):
		t.count.bad[badGroup]++
	case e.kind == removed:
		t.remove(e, tier)
	case len(e.tokens) == 0:
		t.move(e, tier)
	default:
		t.store(e, tier, now)
	}
}

// fullAttention reports whether the event's group is one that feeds the index.
func (t *translator) fullAttention(e *event) bool {
	if e.spec == "" {
		if full, known := t.groups[e.group]; known {
			return full
		}
		return fullAttention("", e.group)
	}
	full := fullAttention(e.spec, e.group)
	if len(t.groups) < maxGroups {
		t.groups[e.group] = full
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
	return t.coarse && t.size > 0 && routing.SuperblockTokens%t.size == 0
}

// fits checks an event's block size and tokens.
func (t *translator) fits(e *event) bool {
	switch {
	case e.blockSize < 1 || e.blockSize > MaxBlockTokens || len(e.tokens) != e.blockSize*len(e.hashes):
		t.count.bad[badTokens]++
		return false
	case e.numbered && e.adapter == "":
		t.count.bad[badAdapter]++
		return false
	case t.size == 0 && t.sizes.claim(t.model, e.blockSize):
		t.size = e.blockSize
	case t.size != e.blockSize:
		t.count.bad[badSize]++
		return false
	}
	return true
}

func (t *translator) store(e *event, tier routing.Tier, now time.Time) {
	if !t.fits(e) {
		return
	}
	if !t.chain(e, tier, nil) {
		t.orphans.keep(e, tier, now, &t.count)
		return
	}
	for t.orphans.n() > 0 {
		o, ok := t.orphans.adopt(&t.blocks)
		if !ok {
			return
		}
		t.chain(&o.event, o.tier, o.gone)
	}
}

// chain hashes the event's blocks behind their parent and holds them, but for those already gone. It returns false if
// the parent is not known.
func (t *translator) chain(e *event, tier routing.Tier, gone []uint64) bool {
	at := block{seed: uint64(kvindex.SeedFor(t.model, e.adapter, e.salt))}
	if e.hasParent {
		i, ok := t.blocks.find(e.parent)
		if !ok {
			return false
		}
		t.blocks.touch(i)
		p := &t.blocks.all[i]
		at = block{seed: p.seed, parent: p.chained, depth: p.depth + 1}
	}
	t.reaches(tier)
	t.changes.cut()
	if e.opaque < len(e.hashes) {
		t.count.bad[badContent]++
	}
	for n, hash := range e.hashes[:e.opaque] {
		t.local = kvindex.AppendTokens(t.local[:0], e.tokens[n*t.size:(n+1)*t.size], t.size, kvindex.Seed(at.seed))
		at.engine, at.chained = hash, t.local[0]
		if at.depth > 0 {
			at.chained = kvindex.Chain(at.parent, at.chained)
		}
		i := t.place(at)
		if !slices.Contains(gone, hash) {
			t.hold(i, tier)
		}
		at.parent, at.depth = at.chained, at.depth+1
	}
	return true
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

// forget gives a block up, whoever holds it.
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
func (t *translator) move(e *event, tier routing.Tier) {
	t.reaches(tier)
	t.changes.cut()
	for _, hash := range e.hashes {
		if i, ok := t.blocks.find(hash); ok {
			t.hold(i, tier)
		} else {
			t.count.orphaned++
		}
	}
}

// hold adds a copy of a block to a tier. Copies beyond the counter's range are not counted: the block is given up too
// early then, never too late.
func (t *translator) hold(i uint32, tier routing.Tier) {
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

func (t *translator) remove(e *event, tier routing.Tier) {
	for _, hash := range e.hashes {
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
func (t *translator) reaches(tier routing.Tier) {
	for t.lower < tier {
		t.lower++
		t.changes.cut()
		for i := t.blocks.lists[0].oldest; i != none; i = t.blocks.all[i].prev {
			if x := &t.blocks.all[i]; x.upTo(t.lower) {
				t.there(t.lower, x)
			}
		}
	}
}

func (t *translator) there(tier routing.Tier, x *block) {
	lanes := &t.changes.lanes[tier]
	lanes[fine].store(x.chained, x.depth, x.parent, 1)
	if t.ends(x) {
		step := uint32(routing.SuperblockTokens / t.size)
		lanes[coarse].store(x.chained, x.depth, lanes[coarse].last, step)
	}
}

func (t *translator) gone(tier routing.Tier, x *block) {
	lanes := &t.changes.lanes[tier]
	lanes[fine].remove(x.chained)
	if t.ends(x) {
		lanes[coarse].remove(x.chained)
	}
}

// ends reports whether a superblock ends with this block.
func (t *translator) ends(x *block) bool {
	return t.superblocks() && (int(x.depth)+1)*t.size%routing.SuperblockTokens == 0
}
