package extproc

import (
	"sync"
	"time"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A lease renews a reservation until it is stopped, three times within its length.
type lease struct {
	every time.Duration
	renew func()

	mu    sync.Mutex  // guards timer; nothing is locked under it
	timer *time.Timer // nil = stopped
}

func newLease(r *warmpathv1.Reservation, live func(*warmpathv1.LifeReport)) *lease {
	l := &lease{every: time.Duration(r.GetLeaseMs()) * time.Millisecond / 3, renew: func() {
		live(&warmpathv1.LifeReport{Reservation: r.GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_PROGRESS})
	}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(l.every, l.due)
	return l
}

func (l *lease) due() {
	l.renew()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Reset(l.every)
	}
}

func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.timer = nil
}
