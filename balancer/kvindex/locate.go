package kvindex

import "math/bits"

// mix spreads hashes over shards, buckets and tags. It is seeded at random: prompts are chosen by users,
// who should not choose where their blocks land.
func (x *Index) mix(hash uint64) uint64 {
	hi, lo := bits.Mul64(hash^x.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func (x *Index) hashAt(r ref) uint64 { return x.segments.at(r.segment()).hashes[r.pos()] }

// find returns the place of a block, noRef if nobody holds it.
func (x *Index) find(hash uint64) ref {
	mix := x.mix(hash)
	s := x.table.shard(mix)
	b, tag := home(mix, len(s.buckets)), pattern(mix)
	for range s.buckets {
		k := &s.buckets[b]
		for m := candidates(k.tags[0], tag); m != 0; m &= m - 1 {
			if r := k.refs[bits.TrailingZeros64(m)/8]; x.hashAt(r) == hash {
				return r
			}
		}
		for m := candidates(k.tags[1], tag) & lastTags; m != 0; m &= m - 1 {
			if r := k.refs[8+bits.TrailingZeros64(m)/8]; x.hashAt(r) == hash {
				return r
			}
		}
		if k.passed() == 0 {
			break
		}
		if b++; b == len(s.buckets) {
			b = 0
		}
	}
	return noRef
}

// findNear is find of a block that probably stands next to another one, if that is known.
func (x *Index) findNear(near ref, hash uint64) ref {
	if near != noRef {
		g, pos := x.segments.at(near.segment()), near.pos()
		live := g.live()
		if pos+1 < segmentSize && g.hashes[pos+1] == hash && live>>(pos+1)&1 != 0 {
			return near + 1
		}
		if pos > 0 && g.hashes[pos-1] == hash && live>>(pos-1)&1 != 0 {
			return near - 1
		}
		if r := x.behind(near, hash); r != noRef {
			return r
		}
	}
	return x.find(hash)
}

// run finds the first of some blocks and tells how many of them stand there one behind the other. 0 if nobody
// holds the first.
func (x *Index) run(blocks []uint64) (r ref, n int) {
	if r = x.find(blocks[0]); r == noRef {
		return noRef, 0
	}
	return r, x.segments.at(r.segment()).run(r.pos(), blocks)
}

// runBehind is run of blocks that follow, in a chain, the one that stands at before.
func (x *Index) runBehind(before ref, blocks []uint64) (r ref, n int) {
	if r = x.behind(before, blocks[0]); r != noRef {
		return r, x.segments.at(r.segment()).run(0, blocks)
	}
	return x.run(blocks)
}

// behind returns the place of a block if it begins the segment before that of another one, else noRef. A chain that
// was inserted in one piece, its tail first, stands there where it goes on.
func (x *Index) behind(before ref, hash uint64) ref {
	if at := before.segment() - 1; at < x.segments.n {
		if g := x.segments.at(at); g.hashes[0] == hash && g.live()&1 != 0 {
			return refOf(at, 0)
		}
	}
	return noRef
}

// run tells how many of the blocks stand in the segment from a position on, where the first does.
func (g *segment) run(pos int, blocks []uint64) int {
	most := min(bits.TrailingZeros8(^(g.live() >> pos)), len(blocks))
	n := 1
	for n < most && g.hashes[pos+n] == blocks[n] {
		n++
	}
	return n
}

// ahead is how many blocks' buckets are read ahead of their turn.
const ahead = 4 * segmentSize

// warm reads the buckets of blocks that are going to be searched, or inserted. The processor waits for all of
// them at once, rather than for one after the other. What it returns means nothing; it has to be kept, or the
// compiler sees that nothing is read.
func (x *Index) warm(blocks []uint64) (sum uint64) {
	for _, hash := range blocks {
		mix := x.mix(hash)
		if buckets := x.table.shard(mix).buckets; len(buckets) > 0 {
			sum += buckets[home(mix, len(buckets))].tags[0]
		}
	}
	return sum
}

// warmRuns reads what is probably the first segment of each run of blocks, if segments are full.
func (x *Index) warmRuns(blocks []uint64) (sum uint64) {
	for i := 0; i < len(blocks); i += segmentSize {
		mix := x.mix(blocks[i])
		buckets := x.table.shard(mix).buckets
		if len(buckets) == 0 {
			continue
		}
		k := &buckets[home(mix, len(buckets))]
		if m := candidates(k.tags[0], pattern(mix)); m != 0 {
			sum += uint64(x.segments.at(k.refs[bits.TrailingZeros64(m)/8].segment()).live())
		}
	}
	return sum
}
