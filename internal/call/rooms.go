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

// take returns an unguessable number that is not in use: positive, and so are its lower 31 bits.
func (s *roomSet) take() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		room := int64(binary.LittleEndian.Uint64(b[:]) >> 1)
		if low := int32(room & (1<<31 - 1)); low != 0 && !s.used[low] {
			s.used[low] = true
			return room
		}
	}
}

// free gives a number back; 0 is none.
func (s *roomSet) free(room int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.used, int32(room&(1<<31-1)))
}
