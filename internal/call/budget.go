package call

import (
	"sync"
	"sync/atomic"
	"time"
)

// A budget bounds the retries of one channel by the calls that it began: in any
// window of budgetWindow a share of those calls, and a floor for channels with few.
// A call costs one atomic addition; only a retry takes the lock.
type budget struct {
	calls atomic.Int64 // begun since the budget was last asked

	// mu guards the slots; nothing is called under it.
	mu    sync.Mutex
	asked time.Time
	slots [budgetSlots]budgetSlot
}

// budgetSlot is one second of the window.
type budgetSlot struct {
	second  int64
	calls   float64
	retries float64
}

const (
	budgetSlots  = 10
	budgetWindow = budgetSlots * time.Second
)

// take takes one retry out of the budget, if it is there. floor is in retries a
// second. A negative ratio means that there is no bound.
func (b *budget) take(now time.Time, ratio, floor float64) bool {
	if ratio < 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	slot := b.roll(now)
	var calls, retries float64
	for i := range b.slots {
		if s := &b.slots[i]; slot.second-s.second < budgetSlots {
			calls += s.calls
			retries += s.retries
		}
	}
	if retries+1 > ratio*calls+max(floor, 0)*budgetSlots {
		return false
	}
	slot.retries++
	return true
}

// roll puts the calls begun since the budget was last asked into the slot of now.
// After a longer pause only those of the last window count, as if they had come
// evenly. Called with mu held.
func (b *budget) roll(now time.Time) *budgetSlot {
	second := now.Unix()
	slot := &b.slots[second%budgetSlots]
	if slot.second != second {
		*slot = budgetSlot{second: second}
	}
	begun := float64(b.calls.Swap(0))
	if pause := now.Sub(b.asked); !b.asked.IsZero() && pause > budgetWindow {
		begun *= float64(budgetWindow) / float64(pause)
	}
	b.asked = now
	slot.calls += begun
	return slot
}
