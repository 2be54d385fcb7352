package kvindex

import "math/bits"

// ahead is how many blocks' buckets are read ahead of their turn.
const ahead = 16

// warm reads the entries of blocks that are going to be searched, or inserted. The processor waits for all of
// them at once, rather than for one after the other. What it returns means nothing; it has to be kept, or the
// compiler sees that nothing is read.
func (x *Index) warm(blocks []uint64) (sum uint64) {
	for _, hash := range blocks {
		sum += x.warmBlock(hash)
	}
	return sum
}

// warmBlock reads without a branch what is probably the block's entry, and the place it would get.
func (x *Index) warmBlock(hash uint64) uint64 {
	mix := x.mix(hash)
	buckets := x.blocks.shard(mix).buckets
	if len(buckets) == 0 {
		return 0
	}
	b := &buckets[home(mix, len(buckets))]
	likely := bits.TrailingZeros64(candidates(b.tags[0], pattern(mix))) / 8
	free := bits.TrailingZeros64(^b.tags[0]&topBits) / 8
	return b.vals[likely].low + b.vals[free].low
}

// warmHoldings is warm, and reads what leads from the entries to the lane's nodes, or will.
func (x *Index) warmHoldings(blocks []uint64, lane uint16) uint64 {
	sum := x.warm(blocks)
	for _, hash := range blocks {
		if e := x.block(hash); e != nil {
			sum += x.warmHolding(e, lane)
		}
	}
	return sum
}

func (x *Index) warmHolding(e *entry, lane uint16) uint64 {
	if one, node := e.ext.one(); e.ext.kind() == extOne && one == lane {
		return uint64(x.nodes.at(node).tick)
	}
	mix := x.mixHolding(e.hash, lane)
	buckets := x.holdings.shard(mix).buckets
	if len(buckets) == 0 {
		return 0
	}
	b := &buckets[home(mix, len(buckets))]
	return uint64(b.vals[bits.TrailingZeros64(candidates(b.tags[0], pattern(mix)))/8])
}
