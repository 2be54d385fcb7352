package chaos

import (
	"runtime"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/internal/pause"
)

// Footprint is what a run holds in memory at one moment: load, channels, proxies and engines of this process together.
type Footprint struct {
	// Goroutines is how many there are, Heap the bytes that a garbage collection leaves.
	Goroutines int    `json:"goroutines"`
	Heap       uint64 `json:"heap_bytes"`
	// Reservations are those of all channels; calls are under way then.
	Reservations int `json:"bookings"`
}

// soak lets one thing after another happen to one replica after another, and measures what is held after
// every tour of the fleet.
func soak(s *stage) error {
	harms := []func(*stage, int) error{
		func(s *stage, i int) error { s.replicas[i].stop(); return s.comeback(s.replicas[i]) },
		func(s *stage, i int) error { s.replicas[i].kill(); return s.comeback(s.replicas[i]) },
		func(s *stage, i int) error { s.replicas[i].proxy.Reset(); return s.restored(s.replicas[i]) },
		replace,
		func(s *stage, i int) error { s.replicas[i].proxy.GoAway(); return s.restored(s.replicas[i]) },
	}
	n := len(s.replicas)
	for turn := range s.Turns {
		i := turn % n
		s.step(s.replicas[i])
		if err := harms[turn%len(harms)](s, i); err != nil {
			return err
		}
		if i == n-1 {
			last, err := s.footprint()
			if err != nil {
				return err
			}
			s.memory = append(s.memory, last)
			s.log("turn %d: %d goroutines, %d KiB", turn+1, last.Goroutines, last.Heap>>10)
		}
	}
	return nil
}

// replace puts a new replica, with a new id and address, in the place of one.
func replace(s *stage, i int) error {
	old := s.replicas[i]
	id := old.id + "-" + strconv.Itoa(len(s.steps))
	next, err := newReplica(s.ctx, id, s.spec, s.Launch)
	if err != nil {
		return err
	}
	s.replicas[i] = next
	s.touched[id] = s.load.now()
	s.fleet.set(entries(s.replicas))
	err = s.until("no client is connected to a replica that is gone", func() bool { return old.proxy.Conns() == 0 })
	old.close()
	if err != nil {
		return err
	}
	return s.restored(next)
}

// footprint is the least of some measurements: calls come and go meanwhile.
func (s *stage) footprint() (Footprint, error) {
	const times, apart = 20, 25 * time.Millisecond
	var least Footprint
	for i := range times {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		f := Footprint{Goroutines: runtime.NumGoroutine(), Heap: m.HeapAlloc - s.load.size(), Reservations: s.reservations()}
		if i == 0 {
			least = f
		}
		least = Footprint{min(least.Goroutines, f.Goroutines), min(least.Heap, f.Heap),
			min(least.Reservations, f.Reservations)}
		if err := pause.For(s.ctx, apart); err != nil {
			return least, err
		}
	}
	return least, nil
}
