package kvindex

import (
	"math/bits"
	"unsafe"
)

// pool has the cells of segments with several holdings, in classes that double. A cell's first word has the
// segment that owns it, which is 32 bits, and above that how many holdings follow. Cells of a class are dense:
// the last moves to where one was freed.
type pool struct {
	classes [classes]cells
	bytes   int64
}

type cells struct {
	chunks [][]holding
	n      uint32
}

const (
	classes            = 19 // up to seven holdings for each of 65,535 lanes
	wordsPerChunkShift = 10
)

// wordsOf is the size of a cell in words.
func wordsOf(class int) int    { return 4 << class }
func capacityOf(class int) int { return wordsOf(class) - 1 }

// classFor returns the smallest class for n holdings.
func classFor(n int) int { return max(bits.Len(uint(n))-2, 0) }

// chunkShift is the binary logarithm of how many cells of a class are in a chunk.
func chunkShift(class int) int    { return max(wordsPerChunkShift-2-class, 0) }
func cellsPerChunk(class int) int { return 1 << chunkShift(class) }

func chunkBytes(class int) int64 {
	return int64(cellsPerChunk(class)*wordsOf(class))*int64(unsafe.Sizeof(holding(0))) + 24
}

func (p *pool) words(class int, cell uint32) []holding {
	shift := chunkShift(class)
	at := int(cell) & (1<<shift - 1) * wordsOf(class)
	return p.classes[class].chunks[cell>>shift][at : at+wordsOf(class)]
}

func (p *pool) owner(class int, cell uint32) uint32 { return uint32(p.words(class, cell)[0]) }

func (p *pool) count(class int, cell uint32) int { return int(p.words(class, cell)[0] >> 32) }

func (p *pool) setCount(class int, cell uint32, n int) {
	w := p.words(class, cell)
	w[0] = holding(uint32(w[0])) | holding(n)<<32
}

func (p *pool) holdings(class int, cell uint32) []holding {
	w := p.words(class, cell)
	return w[1 : 1+int(w[0]>>32)]
}

// need returns how many bytes so many more cells of a class cost.
func (p *pool) need(class, more int) int64 {
	c, per := &p.classes[class], cellsPerChunk(class)
	more -= len(c.chunks)*per - int(c.n)
	if more <= 0 {
		return 0
	}
	return int64((more+per-1)/per) * chunkBytes(class)
}

func (x *Index) newCell(class int, owner uint32, n int) uint32 {
	p := &x.pool
	c := &p.classes[class]
	if p.need(class, 1) > 0 {
		c.chunks = append(c.chunks, make([]holding, cellsPerChunk(class)*wordsOf(class)))
		p.bytes += chunkBytes(class)
	}
	c.n++
	p.words(class, c.n-1)[0] = holding(owner) | holding(n)<<32
	return c.n - 1
}

// resizeCell moves the holdings to a cell of another class.
func (x *Index) resizeCell(class int, cell uint32, to int) (int, uint32) {
	n := x.pool.count(class, cell)
	fresh := x.newCell(to, x.pool.owner(class, cell), n)
	copy(x.pool.holdings(to, fresh), x.pool.holdings(class, cell))
	x.freeCell(class, cell)
	return to, fresh
}

// freeCell moves the last cell of the class into this one.
func (x *Index) freeCell(class int, cell uint32) {
	p := &x.pool
	c := &p.classes[class]
	if last := c.n - 1; last != cell {
		n := 1 + p.count(class, last)
		copy(p.words(class, cell)[:n], p.words(class, last)[:n])
		x.segments.at(p.owner(class, cell)).holders[0].setNode(cell)
	}
	c.n--
	if last, per := len(c.chunks)-1, cellsPerChunk(class); int(c.n) <= (last-1)*per {
		c.chunks[last] = nil
		c.chunks = c.chunks[:last]
		p.bytes -= chunkBytes(class)
	}
}

func (p *pool) setOwner(class int, cell, owner uint32) {
	w := p.words(class, cell)
	w[0] = w[0]&^holding(none) | holding(owner)
}
