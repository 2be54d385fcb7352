package kvindex

import "math/bits"

// ref is the place of a node in Index.nodes.
type ref uint32

// mix spreads hashes over shards, buckets and tags. It is seeded at random: prompts are chosen by users,
// who should not choose where their blocks land.
func (x *Index) mix(hash uint64) uint64 {
	hi, lo := bits.Mul64(hash^x.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func (x *Index) mixHolding(hash uint64, lane uint16) uint64 {
	return x.mix(hash + (uint64(lane)+1)*0xd6e8feb86659fd93)
}

func (x *Index) mixOfEntry(e *entry) uint64 { return x.mix(e.hash) }

func (x *Index) mixOfNode(r *ref) uint64 {
	n := x.nodes.at(uint32(*r))
	return x.mixHolding(n.hash, n.lane)
}

// block returns the entry of a block, nil if there is none. It stays valid until the table changes.
func (x *Index) block(hash uint64) *entry {
	mix := x.mix(hash)
	s := x.blocks.shard(mix)
	if place := findEntry(s, mix, hash); place != none {
		return s.at(place)
	}
	return nil
}

func findEntry(s *shard[entry], mix, hash uint64) int {
	b, tag := home(mix, len(s.buckets)), pattern(mix)
	for range s.buckets {
		k := &s.buckets[b]
		for m := candidates(k.tags[0], tag); m != 0; m &= m - 1 {
			if i := bits.TrailingZeros64(m) / 8; k.vals[i].hash == hash {
				return b<<4 | i
			}
		}
		for m := candidates(k.tags[1], tag) & lastTag; m != 0; m &= m - 1 {
			if i := 8 + bits.TrailingZeros64(m)/8; k.vals[i].hash == hash {
				return b<<4 | i
			}
		}
		if k.passed() == 0 {
			break
		}
		if b++; b == len(s.buckets) {
			b = 0
		}
	}
	return none
}

// holding returns the node of a block that the lane holds, or noNode.
func (x *Index) holding(hash uint64, lane uint16) uint32 {
	if e := x.block(hash); e != nil {
		return x.holdingOf(e, lane)
	}
	return noNode
}

// holdingOf is holding of a block whose entry is known.
func (x *Index) holdingOf(e *entry, lane uint16) uint32 {
	switch {
	case !e.mayBeHeldBy(lane):
		return noNode
	case e.ext.kind() == extOne:
		_, node := e.ext.one()
		return node
	default:
		return x.sharedHolding(e.hash, lane)
	}
}

// sharedHolding is holding of a block that several lanes hold or have held.
func (x *Index) sharedHolding(hash uint64, lane uint16) uint32 {
	mix := x.mixHolding(hash, lane)
	s := x.holdings.shard(mix)
	b, tag := home(mix, len(s.buckets)), pattern(mix)
	for range s.buckets {
		k := &s.buckets[b]
		for m := candidates(k.tags[0], tag); m != 0; m &= m - 1 {
			r := uint32(k.vals[bits.TrailingZeros64(m)/8])
			if n := x.nodes.at(r); n.hash == hash && n.lane == lane {
				return r
			}
		}
		for m := candidates(k.tags[1], tag) & lastTag; m != 0; m &= m - 1 {
			r := uint32(k.vals[8+bits.TrailingZeros64(m)/8])
			if n := x.nodes.at(r); n.hash == hash && n.lane == lane {
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
	return noNode
}

// placeOf returns where the table refers to a node, which it does.
func placeOf(s *shard[ref], mix uint64, i uint32) int {
	b, tag := home(mix, len(s.buckets)), pattern(mix)
	for range s.buckets {
		k := &s.buckets[b]
		for m := candidates(k.tags[0], tag); m != 0; m &= m - 1 {
			if at := bits.TrailingZeros64(m) / 8; k.vals[at] == ref(i) {
				return b<<4 | at
			}
		}
		for m := candidates(k.tags[1], tag) & lastTag; m != 0; m &= m - 1 {
			if at := 8 + bits.TrailingZeros64(m)/8; k.vals[at] == ref(i) {
				return b<<4 | at
			}
		}
		if b++; b == len(s.buckets) {
			b = 0
		}
	}
	return none
}

// join makes the lane, with its node, a holder of the block. makeRoom made room.
func (x *Index) join(hash uint64, lane uint16, node uint32, squeezed, known bool) {
	mix := x.mix(hash)
	s := x.blocks.shard(mix)
	place := none
	if known {
		place = findEntry(s, mix, hash)
	}
	if place == none {
		if x.blocks.need(mix, 1, squeezed) > 0 {
			x.blocks.resize(s, grown(len(s.buckets)), x.mixOfEntry)
		}
		e := entry{hash: hash, ext: oneExt(lane, node)}
		if lane < lowLanes {
			e.low = 1 << lane
		}
		s.insert(mix, e)
		x.nblocks++
		return
	}
	e := s.at(place)
	if e.ext.kind() == extOne {
		x.share(e, squeezed)
	}
	x.addLane(e, lane)
	x.refer(hash, lane, node, squeezed)
}

// share moves the one holder's node to the table of holdings.
func (x *Index) share(e *entry, squeezed bool) {
	lane, node := e.ext.one()
	e.ext = extNone
	if lane >= lowLanes {
		x.addLane(e, lane)
	}
	x.refer(e.hash, lane, node, squeezed)
}

// refer makes the table of holdings lead to a node.
func (x *Index) refer(hash uint64, lane uint16, node uint32, squeezed bool) {
	mix := x.mixHolding(hash, lane)
	s := x.holdings.shard(mix)
	if x.holdings.need(mix, 1, squeezed) > 0 {
		x.holdings.resize(s, grown(len(s.buckets)), x.mixOfNode)
	}
	s.insert(mix, ref(node))
}

// leave takes the lane from the block's holders, and the block from the table after the last.
func (x *Index) leave(hash uint64, lane uint16, node uint32) {
	mix := x.mix(hash)
	s := x.blocks.shard(mix)
	place := findEntry(s, mix, hash)
	if e := s.at(place); e.ext.kind() != extOne {
		x.unrefer(hash, lane, node)
		if x.removeLane(e, lane); e.low != 0 || e.ext != 0 {
			return
		}
	}
	s.remove(mix, place)
	x.nblocks--
	if buckets, ok := s.sparse(); ok {
		x.blocks.resize(s, buckets, x.mixOfEntry)
	}
}

func (x *Index) unrefer(hash uint64, lane uint16, node uint32) {
	mix := x.mixHolding(hash, lane)
	s := x.holdings.shard(mix)
	s.remove(mix, placeOf(s, mix, node))
	if buckets, ok := s.sparse(); ok {
		x.holdings.resize(s, buckets, x.mixOfNode)
	}
}

// moved makes what led to one node of a holding lead to another.
func (x *Index) moved(n *node, from, to uint32) {
	if e := x.block(n.hash); e.ext.kind() == extOne {
		e.ext = oneExt(n.lane, to)
		return
	}
	mix := x.mixHolding(n.hash, n.lane)
	s := x.holdings.shard(mix)
	*s.at(placeOf(s, mix, from)) = ref(to)
}
