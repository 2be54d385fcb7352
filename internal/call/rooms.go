package call

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// rooms are those where legs under way meet.
var rooms = roomSet{used: make(map[int32]bool)}

// A roomSet has numbers that are in use. Their lower 31 bits differ.
type roomSet struct {
	mu   sync.Mutex // guards used
	used map[int32]bool
}

// take returns an unguessable number that is not in use: positive, and so are its lower 31 bits. The remainder of both
// by the ranks of the prefill replica is its rank: engines that read no rank of a leg read it out of the room.
func (s *roomSet) take(rank, ranks int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(max(ranks, 1))
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		low, high := int64(binary.LittleEndian.Uint32(b[:])>>1), int64(binary.LittleEndian.Uint32(b[4:]))
		low += int64(rank) - low%n
		if low <= 0 || low >= 1<<31 || s.used[int32(low)] {
			continue
		}
		s.used[int32(low)] = true
		return (high-high%n)<<31 | low
	}
}

// free gives a number back; 0 is none.
func (s *roomSet) free(room int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.used, int32(room&(1<<31-1)))
}
