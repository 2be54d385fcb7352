package call

import (
	"context"
	"sync"
	"time"
)

// An early is the context of a call that began before the resolver's first result, so that the service config and its
// timeout were unknown. bound adds the timeout. Err is then DeadlineExceeded, as that of any context with a timeout.
type early struct {
	context.Context // the application's
	began           time.Time
	done            chan struct{}
	unwatch         func() bool

	mu    sync.Mutex  // guards the fields below
	timer *time.Timer // nil until the timeout is known
	err   error       // nil until done is closed
}

func newEarly(ctx context.Context) *early {
	e := &early{Context: ctx, began: time.Now(), done: make(chan struct{})}
	e.unwatch = context.AfterFunc(ctx, func() { e.end(ctx.Err()) })
	return e
}

// Done implements [context.Context].
func (e *early) Done() <-chan struct{} { return e.done }

// Err implements [context.Context].
func (e *early) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// bound ends the context when timeout has passed since the call began. Only the first bound counts.
func (e *early) bound(timeout time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer == nil && e.err == nil {
		e.timer = time.AfterFunc(time.Until(e.began.Add(timeout)), func() { e.end(context.DeadlineExceeded) })
	}
}

// cancel ends the context with the call.
func (e *early) cancel() {
	e.unwatch()
	e.end(context.Canceled)
}

func (e *early) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return
	}
	e.err = err
	if e.timer != nil {
		e.timer.Stop()
	}
	close(e.done)
}
