package kvevents

import (
	"context"
	"slices"
)

// kind is what an event tells.
type kind uint8

const (
	unknownKind kind = iota
	stored
	removed
	cleared
)

// event is one change of an engine's KV cache, as any wire format tells it.
type event struct {
	kind      kind
	hashes    []uint64 // the engine's own, opaque
	parent    uint64   // of the first hash
	hasParent bool
	tokens    []uint32 // of all hashes; none in a move to another tier
	blockSize int
	medium    string
	elsewhere bool // the medium is not the replica's own
	adapter   string
	salt      string
	numbered  bool // its adapter is told by a number, which no request can name
	// opaque is the first block whose content is more than its tokens, as an image is;
	// len(hashes) if there is none.
	opaque int
	group  int
	spec   string // kind of the group's attention
}

// batch is what an engine publishes at once. Its slices are used again by the next.
type batch struct {
	ctx     context.Context // reading stops when it ends
	steps   int
	rank    int
	hasRank bool
	events  []event
	bad     unreadable
	hashes  []uint64
	tokens  []uint32
}

func (b *batch) reset() {
	clear(b.events)
	*b = batch{ctx: b.ctx, events: b.events[:0], hashes: b.hashes[:0], tokens: b.tokens[:0]}
}

// step is called for every event, hash and token that is read: an error once the context has ended.
func (b *batch) step() error {
	if b.steps++; b.steps%workPiece != 0 || b.ctx == nil {
		return nil
	}
	return b.ctx.Err()
}

// since returns what was appended to a slice after the first n.
func since[T any](s []T, n int) []T { return s[n:len(s):len(s)] }

// clone returns an event that owns its slices.
func (e event) clone() event {
	e.hashes, e.tokens = slices.Clone(e.hashes), slices.Clone(e.tokens)
	return e
}

// The kinds of what cannot be read. Each is counted and ends nothing.
const (
	badFrames  = iota // a ZMQ message that is not topic, sequence number and payload
	badBatch          // a payload that is no batch
	badEmpty          // a batch without events
	badEvent          // an event that breaks off or has a field of another type
	badKind           // an event of a kind that is not known
	badTokens         // tokens that do not fill the blocks
	badMedium         // a medium that is no tier of the replica
	badAdapter        // an adapter told by number
	badContent        // blocks that hold more than their tokens
	badGroup          // blocks of a group without full attention
	badSize           // a block size that is not the model's
	badKinds
)

var badNames = [badKinds]string{
	"frames", "batch", "empty", "event", "kind", "tokens", "medium", "adapter", "content", "group", "block_size",
}

// unreadable counts what cannot be read, by kind.
type unreadable [badKinds]int64

func (u *unreadable) add(o *unreadable) {
	for i, n := range o {
		u[i] += n
	}
}

// named returns the counts that are not zero.
func (u *unreadable) named() map[string]int64 {
	var m map[string]int64
	for i, n := range u {
		if n == 0 {
			continue
		}
		if m == nil {
			m = make(map[string]int64)
		}
		m[badNames[i]] = n
	}
	return m
}
