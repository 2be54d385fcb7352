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

	// mu guards the fields below; nothing is called under it.
	mu      sync.Mutex
	second  int64                                          // when the budget was last asked
	seconds [budgetWindow]struct{ calls, retries float64 } // the last ones, by their number modulo the window
}

const (
	budgetWindow = 10 // seconds
	retryFloor   = 10 // retries a second on top of the share
)

// take takes one retry out of the budget, if it is there. A negative ratio means that
// there is no bound. After a pause longer than the window the calls begun since count as if they had come evenly.
func (b *budget) take(now time.Time, ratio float64) bool {
	if ratio < 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	begun := float64(b.calls.Swap(0))
	if pause := now.Unix() - b.second; b.second > 0 && pause > budgetWindow {
		begun *= budgetWindow / float64(pause)
	}
	for b.second = max(b.second, now.Unix()-budgetWindow); b.second < now.Unix(); {
		b.second++
		b.seconds[b.second%budgetWindow].calls, b.seconds[b.second%budgetWindow].retries = 0, 0
	}
	last := &b.seconds[b.second%budgetWindow]
	last.calls += begun
	var calls, retries float64
	for _, s := range b.seconds {
		calls += s.calls
		retries += s.retries
	}
	if retries+1 > ratio*calls+retryFloor*budgetWindow {
		return false
	}
	last.retries++
	return true
}
