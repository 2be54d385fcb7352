package kvevents

import (
	"context"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Kind is what an event reports.
type Kind uint8

// The kinds of events.
const (
	UnknownKind Kind = iota
	Stored
	Removed
	Cleared
)

// Event is one change of an engine's KV cache, in any wire format.
type Event struct {
	Kind      Kind
	Hashes    []uint64 // the engine's own, opaque
	Parent    uint64   // of the first hash
	HasParent bool
	Tokens    []uint32 // of all hashes; none in a move to another tier
	BlockSize int
	Medium    string
	Elsewhere bool // the medium is not the replica's own
	Adapter   string
	Salt      string
	Numbered  bool // its adapter has a number only, which no request can name
	// Opaque is the first block whose content is more than its tokens, as an image is; len(Hashes) if there is none.
	Opaque int
	Group  int
	Spec   string // kind of the group's attention
}

// clone returns an event that owns its slices.
func (e Event) clone() Event {
	e.Hashes, e.Tokens = slices.Clone(e.Hashes), slices.Clone(e.Tokens)
	return e
}

// Batch is what an engine publishes at once. Its slices are used again by the next.
type Batch struct {
	Rank    int
	HasRank bool
	Events  []Event
	Bad     Unreadable

	ctx    context.Context // reading stops when it ends
	ended  error           // why it did
	steps  int
	hashes []uint64
	tokens []uint32
	reader reader
}

// Reset empties the batch.
func (b *Batch) Reset() {
	clear(b.Events)
	clear(b.reader.keys)
	*b = Batch{
		ctx: b.ctx, Events: b.Events[:0], hashes: b.hashes[:0], tokens: b.tokens[:0],
		reader: reader{keys: b.reader.keys[:0]},
	}
}

// Step is called for every event and hash that is read: an error once the context has ended.
func (b *Batch) Step() error {
	if b.steps++; b.steps%workPiece == 0 && b.ctx != nil {
		b.ended = b.ctx.Err()
	}
	return b.ended
}

// SetRank takes the rank that a batch names.
func (b *Batch) SetRank(rank int64) {
	if rank >= 0 && rank < 1<<31 {
		b.Rank, b.HasRank = int(rank), true
	}
}

// Finish is called behind the last event; ok is false if the batch cannot be read to its end.
func (b *Batch) Finish(ok bool) {
	if !ok {
		b.Bad[BadBatch]++
	} else if len(b.Events) == 0 && b.Bad == (Unreadable{}) {
		b.Bad[BadEmpty]++
	}
}

// The kinds of what cannot be read. Each is counted and ends nothing.
const (
	BadFrames  = iota // a ZeroMQ message that is not topic, sequence number and payload
	BadBatch          // a payload that is no batch
	BadEmpty          // a batch without events
	BadEvent          // an event that breaks off or has a field of another type
	BadKind           // an event of a kind that is not known
	BadTokens         // tokens that do not fill the blocks
	BadMedium         // a medium that is no tier of the replica
	BadAdapter        // an adapter named by a number
	BadContent        // blocks that hold more than their tokens
	BadGroup          // blocks of a group without full attention
	BadSize           // a block size that is not the model's
	badKinds
)

var badNames = [badKinds]string{
	"frames", "batch", "empty", "event", "kind", "tokens", "medium", "adapter", "content", "group", "block_size",
}

// Unreadable counts what cannot be read, by kind.
type Unreadable [badKinds]int64

func (u *Unreadable) add(o *Unreadable) {
	for i, n := range o {
		u[i] += n
	}
}

// named returns the counts that are not zero.
func (u *Unreadable) named() map[string]int64 {
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

// TierOf returns the tier of a medium as engines name it. Storage that replicas share is none.
func TierOf(medium string) (policy.Tier, bool) {
	switch strings.ToUpper(medium) {
	case "", "GPU", "DEVICE":
		return policy.TierGPU, true
	case "CPU", "CPU_PINNED", "CPU_TIER1", "HOST", "HOST_PINNED":
		return policy.TierHost, true
	case "DISK", "SSD", "NVME", "STORAGE", "CPU_TIER2":
		return policy.TierDisk, true
	}
	return 0, false
}

// fullAttention reports whether blocks of such a group stand for a whole prefix. A group without a kind does if it
// is the first.
func fullAttention(spec string, group int) bool {
	switch spec {
	case "full_attention", "mla_attention", "sink_full_attention", "sink_full":
		return true
	}
	return spec == "" && group == 0
}
