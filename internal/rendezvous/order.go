package rendezvous

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// orderSeed is part of the contract between clients, as is the whole of Score.
const orderSeed = 1337

// A Scorer computes the scores of replicas for one key. It belongs to one goroutine.
type Scorer struct {
	buf []byte // the key, then an id
}

// SetKey sets the key of the scores that follow.
func (s *Scorer) SetKey(key uint64) {
	s.buf = binary.LittleEndian.AppendUint64(s.buf[:0], key)
}

// Score is XXH3-64, seed 1337, of the key's 8 bytes little-endian followed by the
// id. The highest score is first in the rendezvous order.
func (s *Scorer) Score(id string) uint64 {
	s.buf = append(s.buf[:8], id...)
	return xxh3.HashSeed(s.buf, orderSeed)
}

// SessionKey is the key of a session.
func SessionKey(session string) uint64 {
	return xxh3.HashStringSeed(state.SessionKey(session), orderSeed)
}

// Before reports whether score a of replica r stands before score b of o in the
// rendezvous order. Equal scores go by id.
func Before(a uint64, r *policy.Replica, b uint64, o *policy.Replica) bool {
	return a > b || a == b && r.ID < o.ID
}

// A Place names a replica by its place in the fleet that was prepared for, with the number
// of blocks it holds. It has no pointer for the collector to follow.
type Place struct{ At, Depth int32 }

// First returns the first replicas by score, in order, in the memory of top: as many as fit
// there. Behind them an order is searched, not sorted.
func First(top []Place, replicas []*policy.Replica, scores []uint64) []Place {
	top = top[:0]
	for i, r := range replicas {
		at := len(top)
		for ; at > 0; at-- {
			if o := top[at-1].At; Before(scores[o], replicas[o], scores[i], r) {
				break
			}
		}
		if at == cap(top) {
			continue
		}
		top = top[:min(len(top)+1, cap(top))]
		copy(top[at+1:], top[at:])
		top[at] = Place{At: int32(i)}
	}
	return top
}
