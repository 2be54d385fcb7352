package kvevents

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// engine numbers its messages and keeps the last of them.
type engine struct {
	life   int // incarnation: 0 at first, one more after each restart
	seq    uint64
	buffer []uint64
	keep   int
}

func (e *engine) payload(seq uint64) []byte { return fmt.Appendf(nil, "%d/%d", e.life, seq) }

func (e *engine) publish() {
	e.buffer = append(e.buffer, e.seq)
	e.seq++
	if len(e.buffer) > e.keep {
		e.buffer = e.buffer[1:]
	}
}

func (e *engine) restart() { e.life, e.seq, e.buffer = e.life+1, 0, nil }

// published is everything of this incarnation.
func (e *engine) published() (all []string) {
	for seq := range e.seq {
		all = append(all, string(e.payload(seq)))
	}
	return all
}

// opened is a gRPC stream of the engine, which sends its buffer from a number on and then what it publishes.
type opened struct {
	e    *engine
	r    *Sequence
	sent uint64
	more uint64 // numbers that it sends before the one it is to begin with
}

// sequenceTo returns a Sequence, what it applied since the last clear, and its counts.
func sequenceTo() (*Sequence, *[]string, *Status) {
	held, st := new([]string), new(Status)
	return &Sequence{
		apply: func(m message) { *held = append(*held, string(m.payload)) },
		clear: func() { *held = nil },
		note:  func(do func(*Status)) { do(st) },
	}, held, st
}

// accept passes a message to the sequence.
func accept(r *Sequence, seq uint64, rank int, payload []byte) (again bool) {
	return r.accept(message{seq: seq, print: xxh3.Hash(payload), batch: Batch{Rank: rank}, payload: payload})
}

// open opens the stream as SMG's servicer does: a number that is not published yet means that the engine has
// restarted.
func (o *opened) open(t testing.TB) {
	for range 5 {
		start, _ := o.r.open()
		if start >= o.e.seq {
			start = 0
		}
		o.sent = start - min(start, o.more)
		if !o.pump() {
			return
		}
	}
	t.Fatal("opened again and again")
}

// pump sends the rest of the buffer.
func (o *opened) pump() (again bool) {
	for _, seq := range o.e.buffer {
		if seq < o.sent {
			continue
		}
		o.sent = seq + 1
		if accept(o.r, seq, 0, o.e.payload(seq)) {
			return true
		}
	}
	return false
}

func TestStreamsAreResumed(t *testing.T) {
	for more := range uint64(2) {
		testStreamsAreResumed(t, more)
	}
}

func testStreamsAreResumed(t *testing.T, more uint64) {
	e := &engine{keep: 100}
	r, held, st := sequenceTo()
	o := &opened{e: e, r: r, more: more}
	for range 3 {
		o.open(t)
		e.publish()
		e.publish()
		require.False(t, o.pump())
		require.Equal(t, e.published(), *held)
	}
	require.Zero(t, *st)

	e.publish()
	o.sent++ // one is lost on the way
	e.publish()
	require.True(t, o.pump())
	o.open(t)
	require.Equal(t, e.published(), *held)
	require.Equal(t, Status{Gaps: 1}, *st)

	e.keep, e.buffer = 1, nil
	e.publish()
	e.publish()
	o.open(t)
	require.Equal(t, e.published()[9:], *held)
	require.Equal(t, Status{Gaps: 1, Clears: 1}, *st)
}

func TestLastingGapClears(t *testing.T) {
	e := &engine{keep: 100}
	r, held, _ := sequenceTo()
	r.open()
	require.False(t, accept(r, 0, 0, e.payload(0)))
	for range gapTries {
		require.True(t, accept(r, 2, 0, e.payload(2)))
		r.open()
		require.False(t, accept(r, 0, 0, e.payload(0)))
	}
	require.False(t, accept(r, 2, 0, e.payload(2)))
	require.Equal(t, []string{"0/2"}, *held)
}

func TestStreamsOfARestartedEngine(t *testing.T) {
	for _, after := range []int{1, 2, 3, 4, 9} {
		e := &engine{keep: 100}
		r, held, st := sequenceTo()
		o := &opened{e: e, r: r, more: 1}
		for range 4 {
			e.publish()
		}
		o.open(t)
		e.restart()
		for range after {
			e.publish()
		}
		o.open(t)
		require.Equal(t, e.published(), *held, "%d", after)
		require.Equal(t, int64(1), st.Restarts)
	}
	r, held, _ := sequenceTo()
	r.open()
	accept(r, 0, 0, nil)
	r.open()
	r.unconfirmed()
	require.Empty(t, *held, "it does not repeat its last message")
}

// A restarted engine without a snapshot sends only the stream that begins below the last number.
func TestRestartedEngineWithoutSnapshots(t *testing.T) {
	e := &engine{keep: 100}
	r, held, st := sequenceTo()
	o := &opened{e: e, r: r}
	for range 4 {
		e.publish()
	}
	o.open(t)
	e.restart()
	e.publish()
	e.publish()
	start, _ := r.open()
	require.Equal(t, uint64(3), start)
	o.sent = 0
	require.False(t, o.pump(), "it is not opened again")
	require.Equal(t, e.published(), *held)
	require.Equal(t, Status{Restarts: 1, Clears: 1}, *st)
}

// A message without events that repeats the last number shows only that the engine runs.
func TestKeepalives(t *testing.T) {
	e := &engine{keep: 100}
	r, held, st := sequenceTo()
	r.open()
	for seq := range uint64(3) {
		require.False(t, accept(r, seq, 0, e.payload(seq)))
		require.False(t, r.accept(message{seq: seq}))
	}
	r.open()
	require.False(t, r.accept(message{seq: 2}))
	require.True(t, r.confirm, "it may be another engine")
	require.False(t, accept(r, 2, 0, e.payload(2)))
	require.False(t, r.accept(message{seq: 3}), "one whose events were of no use")
	require.Len(t, *held, 4)
	require.Equal(t, uint64(4), r.next)
	require.Zero(t, *st)
}

func TestRanksWithTheirOwnNumbers(t *testing.T) {
	r, held, st := sequenceTo()
	r.open()
	for seq := range uint64(3) {
		for rank := range 2 {
			require.False(t, accept(r, seq, rank, fmt.Append(nil, seq, rank)))
		}
	}
	require.Len(t, *held, 6)
	require.Zero(t, *st)
	start, fresh := r.open()
	require.Zero(t, start)
	require.True(t, fresh)
	require.Empty(t, *held)
}

func TestSnapshotsHaveOneNumber(t *testing.T) {
	r, held, _ := sequenceTo()
	r.snapshots = true
	r.open()
	for _, seq := range []uint64{7, 7, 7, 8, 9} {
		require.False(t, accept(r, seq, 0, fmt.Append(nil, seq)))
	}
	require.Len(t, *held, 5)
	require.True(t, accept(r, 8, 0, []byte("x")), "no snapshot any more")
	require.Empty(t, *held)
}

func TestReopenedStreamsProperty(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		e := &engine{keep: 5 + rng.IntN(20)}
		r, held, _ := sequenceTo()
		o := &opened{e: e, r: r, more: seed % 2}
		e.publish()
		o.open(t)
		for range 200 {
			switch rng.IntN(40) {
			case 0:
				e.restart()
				e.publish()
				o.open(t)
			case 1:
				o.open(t)
			case 2:
				e.publish()
				o.sent = e.seq
			default:
				e.publish()
				if o.pump() {
					o.open(t)
				}
			}
			all, at := e.published(), int(r.next)
			require.Equal(t, all[at-len(*held):at], *held, "seed %d", seed)
		}
	}
}
