package kvevents

import (
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
	Parent    uint64   // of the first hash; 0 = none
	Tokens    []uint32 // of all hashes; none in a move to another tier
	BlockSize int
	Medium    string
	Elsewhere bool // the medium is not the replica's own
	Adapter   string
	Salt      string
	Numbered  bool // its adapter has a number only, which no request can name
	Opaque    int  // so many blocks at the end are more than their tokens, as an image is
	Group     int
	Spec      string // kind of the group's attention
	Broken    bool   // it breaks off, or a field is of another type: it is counted only
}

// SetOpaque marks the blocks from this one on as more than their tokens.
func (e *Event) SetOpaque(block int) { e.Opaque = max(e.Opaque, len(e.Hashes)-block) }

// SetKeys takes the extra keys of a block, "" for one that is no text. The first block of a prompt has the cache salt
// as its only key beside the adapter; any other key stands for content that is not in the tokens. All but the
// keys is set before.
func (e *Event) SetKeys(block int, keys []string) {
	keys = slices.DeleteFunc(keys, func(k string) bool { return k != "" && (k == e.Adapter || k == e.Salt) })
	switch {
	case len(keys) == 0:
	case len(keys) == 1 && block == 0 && e.Parent == 0 && e.Salt == "" && keys[0] != "":
		e.Salt = keys[0]
	default:
		e.SetOpaque(block)
	}
}

// HashOf is an engine's hash of bytes: the last eight count.
func HashOf(b []byte) (h uint64) {
	for _, c := range b {
		h = h<<8 | uint64(c)
	}
	return h
}

// Batch is what an engine publishes at once.
type Batch struct {
	Rank   int // data-parallel rank, where HasRank
	Events []Event
	Bad    Unreadable

	HasRank bool
}

// SetRank takes the rank that a batch names.
func (b *Batch) SetRank(rank int64) {
	if rank >= 0 && rank < 1<<31 {
		b.Rank, b.HasRank = int(rank), true
	}
}

// Add takes events, or counts those that are broken or of no known kind.
func (b *Batch) Add(events ...Event) {
	for _, e := range events {
		e.Opaque = min(e.Opaque, len(e.Hashes))
		switch {
		case e.Broken:
			b.Bad.Count(BadEvent, 1)
		case e.Kind == UnknownKind:
			b.Bad.Count(BadKind, 1)
		default:
			b.Events = append(b.Events, e)
		}
	}
}

// Finish is called behind the last event; ok is false if the batch breaks off.
func (b *Batch) Finish(ok bool) {
	if !ok {
		b.Bad.Count(BadBatch, 1)
	} else if len(b.Events) == 0 && len(b.Bad) == 0 {
		b.Bad.Count(BadEmpty, 1)
	}
}

// Unreadable counts what cannot be read, by kind. It ends nothing.
type Unreadable map[string]int64

// The kinds of what cannot be read.
const (
	BadFrames  = "frames"     // a ZeroMQ message that is not topic, sequence number and payload
	BadBatch   = "batch"      // a payload that is no batch
	BadEmpty   = "empty"      // a batch without events
	BadEvent   = "event"      // an event that breaks off or has a field of another type
	BadKind    = "kind"       // an event of a kind that is not known
	BadTokens  = "tokens"     // tokens that do not fill the blocks
	BadMedium  = "medium"     // a medium that is no tier of the replica
	BadAdapter = "adapter"    // an adapter named by a number
	BadContent = "content"    // blocks that are more than their tokens
	BadGroup   = "group"      // blocks of a group without full attention
	BadSize    = "block_size" // a block size that is not the replica's
	// BadSuperblock is an event whose blocks do not divide superblocks: it is read here, and only the size is passed on.
	BadSuperblock = "superblock"
)

// Count counts some of a kind.
func (u *Unreadable) Count(kind string, n int64) {
	if *u == nil {
		*u = make(Unreadable)
	}
	(*u)[kind] += n
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
