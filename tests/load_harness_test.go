package tests

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// load is a set of calls that run beside a test.
type load struct {
	t      testing.TB
	over   atomic.Bool
	rounds atomic.Int64
	all    sync.WaitGroup
}

// startLoad starts workers that repeat a round until end, or until the test ends.
func startLoad(t testing.TB, workers int, round func(worker, n int)) *load {
	l := &load{t: t}
	t.Cleanup(l.end)
	for w := range workers {
		l.all.Go(func() {
			for n := 0; !l.over.Load(); n++ {
				round(w, n)
				l.rounds.Add(1)
			}
		})
	}
	return l
}

// advance waits until so many more rounds are done.
func (l *load) advance(n int64) {
	l.t.Helper()
	goal := l.rounds.Load() + n
	eventually(l.t, "calls go on", func() bool { return l.rounds.Load() >= goal || l.t.Failed() })
}

// end waits for the rounds under way.
func (l *load) end() {
	l.over.Store(true)
	l.all.Wait()
}

// within repeats steps until they take less than a time that the product goes by: a busy machine may stand still longer.
func within(t testing.TB, d time.Duration, steps func()) {
	t.Helper()
	for end, began := time.Now().Add(time.Minute), time.Now(); ; began = time.Now() {
		if steps(); time.Since(began) < d {
			return
		}
		require.True(t, time.Now().Before(end), "the steps take longer than %v", d)
	}
}

// deadlineOf returns a context with a timeout that needs no cancel, for calls in a loop.
func deadlineOf(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}
