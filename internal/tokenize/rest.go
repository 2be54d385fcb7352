package tokenize

import (
	"errors"
	"sync"
	"time"
)

// ErrResting means that the tokenizer failed just now and is not used for a while, so
// that not every prompt waits for it in vain.
var ErrResting = errors.New("tokenize: it failed just now and is left alone for a while")

const (
	firstRest = 100 * time.Millisecond
	longRest  = 10 * time.Second
)

// rest is the pause after a failure: 100 ms, twice as long after each that follows, up
// to 10 s. When it ends one call tries, and the others after it if it succeeds.
type rest struct {
	now func() time.Time

	mu    sync.Mutex // guards the fields below; taken alone
	pause time.Duration
	until time.Time
}

// may reports ErrResting during the pause.
func (r *rest) may() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pause == 0 {
		return nil
	}
	now := r.now()
	if now.Before(r.until) {
		return ErrResting
	}
	r.until = now.Add(r.pause) // for the others, until this one is back
	return nil
}

// after takes note of how a call ended.
func (r *rest) after(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.pause = 0
		return
	}
	r.pause = min(max(2*r.pause, firstRest), longRest)
	r.until = r.now().Add(r.pause)
}
