package prefixaffinity

import (
	"encoding/binary"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/zeebo/xxh3"
)

// agreedSeed is part of the contract between clients, as is the whole of score.
const agreedSeed = 1337

// head is how many first places of the agreed order are kept with a request.
// Behind them the order is searched, not sorted.
const head = 8

// scorer computes the scores of replicas for one key. It belongs to one goroutine.
type scorer struct {
	buf []byte // the key, then an id
}

func (s *scorer) setKey(key uint64) {
	s.buf = binary.LittleEndian.AppendUint64(s.buf[:0], key)
}

// score is XXH3-64, seed 1337, of the key's 8 bytes little-endian followed by the
// id. The highest score is first in the agreed order.
func (s *scorer) score(id string) uint64 {
	s.buf = append(s.buf[:8], id...)
	return xxh3.HashSeed(s.buf, agreedSeed)
}

// before reports whether score a of replica r stands before score b of o in the
// agreed order. Equal scores go by id.
func before(a uint64, r *routing.Replica, b uint64, o *routing.Replica) bool {
	return a > b || a == b && r.ID < o.ID
}

// A place names a replica by its place in the fleet that was prepared for, and
// says how many blocks it holds. It has no pointer for the collector to follow.
type place struct{ at, depth int32 }

// first returns the first head replicas by score, in order, and how many they are.
func first(replicas []*routing.Replica, scores []uint64) (top [head]place, n int) {
	ahead := func(i int, o place) bool {
		return before(scores[i], replicas[i], scores[o.at], replicas[o.at])
	}
	for i := range replicas {
		if n == head && !ahead(i, top[n-1]) {
			continue
		}
		n = min(n+1, head)
		at := n - 1
		for ; at > 0 && ahead(i, top[at-1]); at-- {
			top[at] = top[at-1]
		}
		top[at] = place{at: int32(i)}
	}
	return top, n
}
