package kvevents

import (
	"context"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
)

const (
	// workPiece is how many events are worked through before their changes are passed on.
	workPiece = 1024
	// maxGroups bounds the groups remembered; models have a few.
	maxGroups = 64
)

// fullAttention are the kinds of groups whose blocks stand for a whole prefix.
var fullAttention = []string{"full_attention", "mla_attention", "sink_full_attention", "sink_full"}

// translator turns the events of one rank of one replica into changes of chained hashes. Its stream's applying guards
// it.
type translator struct {
	stream *Stream
	rank   int

	size    int  // tokens in a block; 0 until the first is stored
	fixed   bool // size is that of the fastest tier: slower tiers may hold larger blocks
	blocks  blocks
	groups  map[int]bool // whether a group has full attention, where events have it
	lower   policy.Tier  // the slowest tier that was ever reported
	changes changes
	local   []uint64 // one hash, reused
}

// apply takes events in and passes on what they change, in pieces. It stops when the context ends.
func (t *translator) apply(ctx context.Context, events []Event) {
	for piece := range slices.Chunk(events, workPiece) {
		for i := range piece {
			if ctx.Err() != nil {
				return
			}
			t.event(&piece[i])
		}
		t.flush()
	}
}

// flush passes on the changes.
func (t *translator) flush() {
	if out := t.changes.take(t.stream.Attrs.ID, t.rank, t.size); len(out) > 0 {
		t.stream.Sink(out)
	}
}

// clear forgets everything, as if nothing had ever come.
func (t *translator) clear() {
	t.forgetAll()
	t.flush()
	t.size, t.fixed, t.lower = 0, false, 0
	clear(t.groups)
}

func (t *translator) event(e *Event) {
	t.stream.counts.Events++
	if e.Kind == Cleared {
		t.forgetAll()
		return
	}
	tier, ok := TierOf(e.Medium)
	switch {
	case !ok || e.Elsewhere:
		t.stream.counts.Unreadable.Count(BadMedium, 1)
	case !t.fullAttention(e):
		t.stream.counts.Unreadable.Count(BadGroup, 1)
	case e.Kind == Removed:
		for _, hash := range e.Hashes {
			t.remove(hash, tier)
		}
	case len(e.Tokens) > 0:
		t.store(e, tier)
	default: // copies of known blocks on another tier
		t.reaches(tier)
		for _, hash := range e.Hashes {
			if i, known := t.blocks.places[hash]; known {
				t.hold(i, tier)
			} else {
				t.stream.counts.Orphaned++
			}
		}
	}
}

// fullAttention reports whether the blocks of the event's group stand for a whole prefix. A group whose kind was never
// named does if it is the first.
func (t *translator) fullAttention(e *Event) bool {
	if e.Spec == "" {
		full, known := t.groups[e.Group]
		return full || !known && e.Group == 0
	}
	full := slices.Contains(fullAttention, e.Spec)
	if len(t.groups) < maxGroups {
		t.groups[e.Group] = full
	}
	return full
}

func (t *translator) forgetAll() {
	if t.size > 0 {
		for tier := range t.lower + 1 {
			t.changes[tier][fine].clear()
			if t.superblocks() {
				t.changes[tier][coarse].clear()
			}
		}
	}
	t.blocks.reset()
}

// superblocks reports whether coarse changes are wanted, and superblocks end where blocks do.
func (t *translator) superblocks() bool {
	return t.stream.Coarse && t.size > 0 && policy.SuperblockTokens%t.size == 0
}

// fits checks the block size and the tokens of an event on a tier. The first event on the fastest tier fixes the block
// size, and what slower tiers hold in blocks of another size is forgotten.
func (t *translator) fits(e *Event, tier policy.Tier) bool {
	bad := ""
	switch {
	case e.BlockSize < 1 || len(e.Tokens) != e.BlockSize*len(e.Hashes):
		bad = BadTokens
	case e.Numbered && e.Adapter == "":
		bad = BadAdapter
	case t.size != 0 && t.size != e.BlockSize && (t.fixed || tier != policy.TierGPU):
		bad = BadSize
	default:
		resized := t.size != e.BlockSize
		if resized {
			t.forgetAll()
			t.flush() // with the size that it had
		}
		t.size, t.fixed = e.BlockSize, t.fixed || tier == policy.TierGPU
		if t.stream.Coarse && !t.superblocks() {
			t.stream.counts.Unreadable.Count(BadSuperblock, 1)
			if resized {
				t.changes[policy.TierGPU][coarse].clear() // it tells the size
			}
		}
		return true
	}
	t.stream.counts.Unreadable.Count(bad, 1)
	return false
}

// store hashes the event's blocks behind their parent and holds them.
func (t *translator) store(e *Event, tier policy.Tier) {
	if !t.fits(e, tier) {
		return
	}
	x := block{seed: uint64(kvindex.SeedFor(model(t.stream.Attrs), e.Adapter, e.Salt))}
	if e.Parent != 0 {
		i, known := t.blocks.places[e.Parent]
		if !known {
			t.stream.counts.Orphaned++
			return
		}
		t.blocks.touch(i)
		p := &t.blocks.all[i]
		x = block{seed: p.seed, parent: p.chained, depth: p.depth + 1}
	}
	if e.Opaque > 0 {
		t.stream.counts.Unreadable.Count(BadContent, 1)
	}
	t.reaches(tier)
	for i, hash := range e.Hashes[:len(e.Hashes)-e.Opaque] {
		t.local = kvindex.AppendTokens(t.local[:0], e.Tokens[i*t.size:(i+1)*t.size], t.size, kvindex.Seed(x.seed))
		x.engine, x.chained = hash, t.local[0]
		if x.depth > 0 {
			x.chained = kvindex.Chain(x.parent, x.chained)
		}
		t.hold(t.place(x), tier)
		x.parent, x.depth = x.chained, x.depth+1
	}
}

// place returns the place of a block, which is new, known, or not what was known under the engine's hash.
func (t *translator) place(x block) uint32 {
	i, known := t.blocks.places[x.engine]
	if known && t.blocks.all[i].chained == x.chained {
		return i
	}
	if !known {
		i = t.blocks.next()
	}
	old := &t.blocks.all[i]
	was := old.fastest()
	if !known && was < policy.Tiers {
		t.stream.counts.Forgotten++
	}
	old.copies = [policy.Tiers]uint8{}
	t.changedTier(old, was)
	t.blocks.put(i, x)
	return i
}

// hold adds a copy of a block to a tier. Copies beyond the counter's range are not counted: the block is given up too
// early then, never too late.
func (t *translator) hold(i uint32, tier policy.Tier) {
	x := &t.blocks.all[i]
	was := x.fastest()
	if x.copies[tier] < ^uint8(0) {
		x.copies[tier]++
	}
	t.changedTier(x, was)
	t.blocks.touch(i)
}

// remove takes a copy of a block from a tier.
func (t *translator) remove(hash uint64, tier policy.Tier) {
	i := t.blocks.places[hash] // 0, where nothing is held, if it is not known
	x := &t.blocks.all[i]
	if x.copies[tier] == 0 {
		return
	}
	was := x.fastest()
	x.copies[tier]--
	if t.changedTier(x, was); x.fastest() == policy.Tiers {
		t.blocks.touch(i)
	}
}

// reaches makes the tier of an event known. What is held on faster ones is on it, too, from then on. What the event
// stores need not follow what was stored before.
func (t *translator) reaches(tier policy.Tier) {
	for t.lower < tier {
		t.lower++
		for i := t.blocks.all[heldList].prev; i != heldList; i = t.blocks.all[i].prev {
			if x := &t.blocks.all[i]; x.fastest() <= t.lower {
				t.change(t.lower, x, true)
			}
		}
	}
	t.changes.cut()
}

// changedTier passes on that the fastest tier of a block was another one. The block counts on that tier and all below.
func (t *translator) changedTier(x *block, was policy.Tier) {
	now := x.fastest()
	for tier := min(was, now); tier < max(was, now) && tier <= t.lower; tier++ {
		t.change(tier, x, now < was)
	}
	switch {
	case was == policy.Tiers && now < was:
		t.blocks.held++
	case now == policy.Tiers && was < now:
		t.blocks.held--
	}
}

// change notes that a block is there on a tier, or gone, and the superblock that ends with it.
func (t *translator) change(tier policy.Tier, x *block, there bool) {
	lanes := t.changes[tier][:1]
	if t.superblocks() && (int(x.depth)+1)*t.size%policy.SuperblockTokens == 0 {
		lanes = t.changes[tier][:]
	}
	for g := range lanes {
		l, parent := &lanes[g], x.parent
		if c := l.chain(); g == coarse && c != nil { // those of one event follow each other
			parent = c.Stored[len(c.Stored)-1]
		}
		if there {
			l.store(x.chained, parent)
		} else {
			l.remove(x.chained)
		}
	}
}

// What a hash of a change covers.
const (
	fine   = iota // the engine's block
	coarse        // a superblock
	grains
)

// lane is the changes of one tier and grain, in their order. An index keeps these apart too, so only the order within
// one matters.
type lane []policy.CacheChange

// chain returns the last change if it has stored blocks, else nil.
func (l lane) chain() *policy.CacheChange {
	if n := len(l); n > 0 && len(l[n-1].Stored) > 0 {
		return &l[n-1]
	}
	return nil
}

// next returns the change for what does not follow what was stored last.
func (l *lane) next() *policy.CacheChange {
	if len(*l) == 0 || l.chain() != nil {
		*l = append(*l, policy.CacheChange{})
	}
	return &(*l)[len(*l)-1]
}

// clear: everything is gone; earlier changes do not matter any more.
func (l *lane) clear() { *l = append((*l)[:0], policy.CacheChange{Cleared: true}) }

// remove: a block is gone.
func (l *lane) remove(hash uint64) {
	c := l.next()
	c.Removed = append(c.Removed, hash)
}

// store: a block is there. It joins the chain stored last if its parent ends that one.
func (l *lane) store(hash, parent uint64) {
	c := l.chain()
	if c == nil || c.Stored[len(c.Stored)-1] != parent {
		c = l.next()
	}
	c.Stored = append(c.Stored, hash)
}

// changes collects what a batch changed.
type changes [policy.Tiers][grains]lane

// take returns the changes of a replica's rank, with this many tokens in a block, and empties them.
func (c *changes) take(replica string, rank, blockTokens int) (out []policy.CacheChange) {
	for t := range c {
		for g := range c[t] {
			for _, x := range c[t][g] {
				if !x.Cleared && len(x.Removed)+len(x.Stored) == 0 {
					continue
				}
				x.Replica, x.Rank, x.Tier, x.BlockTokens, x.Coarse = replica, rank, policy.Tier(t), blockTokens, g == coarse
				out = append(out, x)
			}
		}
	}
	*c = changes{}
	return out
}

// cut ends the chains of superblocks: what comes next need not follow them.
func (c *changes) cut() {
	for t := range c {
		if l := &c[t][coarse]; l.chain() != nil {
			l.next()
		}
	}
}
