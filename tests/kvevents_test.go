package tests

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
)

// eightEngines are engines of every kind: three encodings over ZeroMQ, and gRPC.
func eightEngines(t *testing.T, drop func(uint64) bool) (all []*simulated) {
	for i := range 8 {
		encoding := [...]kvpublish.Encoding{kvpublish.Arrays, kvpublish.Mixed, kvpublish.Maps, ""}[i%4]
		all = append(all, simulate(t, encoding, drop))
	}
	return all
}

func requireNoErrors(t *testing.T, sts []kvevents.Status) {
	t.Helper()
	for _, st := range sts {
		require.Empty(t, st.Unreadable, "%+v", st)
		require.Zero(t, st.Orphaned+st.Forgotten, "%+v", st)
	}
}

func TestKVEventsAddUpToTheCaches(t *testing.T) {
	w := newEventWorld(t, eightEngines(t, nil), kvevents.Options{})
	w.load(1, 60, func() {})
	sts := w.exact()
	requireNoErrors(t, sts)
	for _, st := range sts {
		require.Zero(t, st.Clears+st.Gaps+st.Restarts, "%+v", st)
		require.True(t, st.Connected)
		require.Equal(t, 16, st.BlockTokens)
	}
}

func TestKVEventsOfALateSubscriber(t *testing.T) {
	w := &eventWorld{t: t, engines: eightEngines(t, nil)}
	w.load(2, 30, func() {})
	newEventWorld(t, w.engines, kvevents.Options{}).exact()
}

func TestKVEventsAfterARestart(t *testing.T) {
	w := newEventWorld(t, eightEngines(t, nil), kvevents.Options{})
	w.load(3, 60, func() {
		w.published(30)
		w.connected(1)
		for _, e := range w.engines[:4] {
			e.kill()
			e.boot()
			e.rpc.cut()
			e.cutEvents()
		}
	})
	w.load(4, 10, func() {})
	sts := w.exact()
	requireNoErrors(t, sts)
	for _, st := range sts[:4] {
		require.Positive(t, st.Restarts, "%+v", st)
	}
}

func TestKVEventsOverACutConnection(t *testing.T) {
	w := newEventWorld(t, eightEngines(t, nil), kvevents.Options{})
	w.load(5, 60, func() {
		for round := range uint64(3) {
			w.published(20 * (1 + round))
			w.connected(1 + int64(round))
			for _, e := range w.engines {
				e.cutEvents()
			}
		}
	})
	for _, st := range w.exact() {
		if w.engine(st.Replica).replays() {
			require.Zero(t, st.Clears+st.Restarts, "a connection that blinked clears nothing: %+v", st)
		}
		require.Greater(t, st.Connections, int64(1))
	}
}

// connected waits until events of every engine have come, and over this many connections, one after the other.
func (w *eventWorld) connected(n int64) {
	eventually(w.t, "connections with events", func() bool {
		sts := w.manager.Status()
		return len(sts) == len(w.engines) && !slices.ContainsFunc(sts, func(st kvevents.Status) bool {
			return st.Connections < n || st.Next < 2
		})
	})
}

// published waits until every engine has published this many batches.
func (w *eventWorld) published(batches uint64) {
	for _, e := range w.engines {
		for _, next, more := e.log.From(0); next < batches; _, next, more = e.log.From(0) {
			<-more
		}
	}
}

func TestKVEventsWithMessagesDropped(t *testing.T) {
	var n atomic.Int64
	w := newEventWorld(t, eightEngines(t, func(uint64) bool { return n.Add(1)%20 == 0 }), kvevents.Options{})
	w.lossy.Store(true)
	w.load(6, 60, func() {})
	w.lossy.Store(false)
	w.load(7, 2, func() {}) // if a stream loses its last message, the gap shows only in the next message
	for _, st := range w.exact() {
		if w.engine(st.Replica).replays() {
			require.Zero(t, st.Clears, "%+v", st)
		}
		require.Positive(t, st.Gaps+st.Replays, "%+v", st)
	}
}

// Contents above the memory budget are evicted: the index then has a subset of the engines' contents.
func TestKVEventsAboveTheBudget(t *testing.T) {
	w := newEventWorld(t, eightEngines(t, nil), kvevents.Options{MaxBytes: 40 * 80})
	w.load(7, 40, func() {})
	for i, st := range w.quiet() {
		require.Positive(t, st.Forgotten)
		require.LessOrEqual(t, st.Blocks, 40)
		want, got := w.engines[i].contents.copy(), w.known.holds(fmt.Sprint(i))
		require.NotEmpty(t, got)
		for h := range got {
			require.True(t, want[h], "engine %d does not hold it", i)
		}
	}
}
