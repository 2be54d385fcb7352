package kvevents

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// replayer is an engine with a replay socket.
type replayer struct {
	engine
	broken bool
	cuts   int                   // replays that will break off at once
	drops  func(seq uint64) bool // what a replay leaves out
}

// live publishes a message that reaches the subscription.
func (e *replayer) live(q *Sequence) {
	e.publish()
	q.Live(context.Background(), e.seq-1, e.payload(e.seq-1), time.Now())
}

func (e *replayer) replay(_ context.Context, from uint64, each func(uint64, []byte) bool) error {
	if e.cuts--; e.broken || e.cuts >= 0 {
		return errors.New("broken")
	}
	for _, seq := range e.buffer {
		if seq >= from && (e.drops == nil || !e.drops(seq)) && !each(seq, e.payload(seq)) {
			return nil
		}
	}
	return nil
}

// followed is a Sequence of the engine's messages.
func followed(e *replayer) (*Sequence, *[]string, *Status) {
	q, held, st := sequenceTo()
	q.replay, st.Connected = e.replay, true
	return q, held, st
}

func send(q *Sequence, e *replayer, n int) {
	for range n {
		e.live(q)
	}
}

func TestGapsAreFilled(t *testing.T) {
	e := &replayer{engine: engine{keep: 100}}
	f, held, st := followed(e)
	send(f, e, 5)
	e.publish()
	e.publish()
	send(f, e, 2)
	require.Equal(t, e.published(), *held)
	require.Equal(t, Status{Connected: true, Gaps: 1, Replays: 1}, *st)

	e.publish() // the last one is lost: no gap shows it
	f.Check(context.Background())
	require.Equal(t, e.published(), *held)
	require.Zero(t, st.Clears)
}

func TestLateStartGetsTheBuffer(t *testing.T) {
	e := &replayer{engine: engine{keep: 3}}
	for range 10 {
		e.publish()
	}
	f, held, st := followed(e)
	f.Check(context.Background())
	require.Equal(t, e.published()[7:], *held)
	send(f, e, 2)
	require.Equal(t, e.published()[7:], *held)
	require.Zero(t, st.Clears)
}

// What was published before the first live message is requested, also where the first request was too early or
// failed.
func TestLateStartIsRequestedAgain(t *testing.T) {
	for cuts := range 3 {
		e := &replayer{engine: engine{keep: 100}, cuts: cuts}
		f, held, st := followed(e)
		f.Check(context.Background())
		for range 3 { // no subscription is there yet
			e.publish()
		}
		send(f, e, 2)
		require.Equal(t, e.published(), *held)
		require.Zero(t, st.Clears+st.Gaps)
	}
}

// A replay that is cut, or that lacks what the engine could not send at once, is requested again.
func TestReplaysThatBreakOff(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(*replayer)
		replays int64
	}{
		"cut": {func(e *replayer) { e.cuts = 2 }, 3},
		"holes": {func(e *replayer) {
			n := 0
			e.drops = func(seq uint64) bool { n++; return n%5 == 0 }
		}, 3},
		"short": {func(e *replayer) {
			n := 0
			e.drops = func(seq uint64) bool { n++; return n > 4 && n < 10 }
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			e := &replayer{engine: engine{keep: 100}}
			f, held, st := followed(e)
			send(f, e, 5)
			for range 7 {
				e.publish()
			}
			c.spoil(e)
			send(f, e, 1)
			require.Equal(t, e.published(), *held)
			require.Zero(t, st.Clears)
			require.Equal(t, c.replays, st.Replays)
			require.Empty(t, st.Problem)
		})
	}
}

func TestUnavailableMessagesClear(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*replayer, *Sequence)
		left  int
	}{
		"short buffer": {func(e *replayer, _ *Sequence) { e.keep, e.buffer = 2, nil }, 2},
		"no replay":    {func(_ *replayer, f *Sequence) { f.replay = nil }, 1},
		"broken":       {func(e *replayer, _ *Sequence) { e.broken = true }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := &replayer{engine: engine{keep: 100}}
			f, held, st := followed(e)
			send(f, e, 5)
			c.spoil(e, f)
			for range 4 {
				e.publish()
			}
			send(f, e, 1)
			all := e.published()
			require.Equal(t, all[len(all)-c.left:], *held)
			require.Equal(t, int64(1), st.Clears)
			require.Zero(t, st.Restarts)
		})
	}
}

func TestRestartClears(t *testing.T) {
	for _, after := range []int{0, 1, 3, 5, 6, 9} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			e := &replayer{engine: engine{keep: 100}}
			f, held, st := followed(e)
			send(f, e, 5)
			e.restart()
			for range after {
				e.publish()
			}
			f.Check(context.Background()) // as after every new connection
			require.Equal(t, e.published(), *held)
			require.Equal(t, int64(1), st.Restarts)
			send(f, e, 3)
			require.Equal(t, e.published(), *held)
			require.Equal(t, int64(1), st.Clears)
		})
	}
	e := &replayer{engine: engine{keep: 100}}
	f, held, _ := followed(e)
	f.replay = nil
	send(f, e, 5)
	e.restart()
	send(f, e, 2)
	require.Equal(t, e.published(), *held, "a number that goes back needs no replay")
}

// Messages of the incarnation before a restart are dropped, however many still arrive.
func TestMessagesBeforeARestart(t *testing.T) {
	for _, after := range []int{0, 1, 3} {
		e := &replayer{engine: engine{keep: 100}}
		q, held, st := followed(e)
		send(q, e, 5)
		var late [][]byte
		for range 6 {
			late = append(late, e.payload(e.seq))
			e.publish()
		}
		e.restart()
		for range after {
			e.publish()
		}
		came := time.Now()
		for i, payload := range late[1:] {
			q.Live(context.Background(), uint64(6+i), payload, came)
			require.LessOrEqual(t, st.Replays, int64(3), "one question is enough")
		}
		require.Subset(t, e.published(), *held, "%d", after)
		send(q, e, 3)
		require.Equal(t, e.published(), *held, "%d", after)
		require.Equal(t, int64(1), st.Restarts, "%d", after)
		require.Equal(t, int64(1), st.Clears, "%d", after)
	}
}

// Live messages are taken although replays lack them, as those of another publisher do. That is a problem until
// replays have them.
func TestReplaysOfAnotherPublisher(t *testing.T) {
	e, other := &replayer{engine: engine{keep: 100}}, &replayer{engine: engine{keep: 100, life: 9}}
	for range 3 {
		other.publish()
	}
	for range 10 {
		e.publish()
	}
	q, held, st := followed(e)
	q.replay = other.replay
	q.Check(context.Background())
	send(q, e, 20)
	require.Equal(t, e.published()[10+gapTries-1:], *held)
	require.Equal(t, int64(1), st.Clears)
	require.NotEmpty(t, st.Problem)
	q.Check(context.Background())
	require.NotEmpty(t, st.Problem)

	q.replay = e.replay
	e.publish()
	send(q, e, 2)
	q.Check(context.Background())
	require.Equal(t, e.published(), *held)
	require.Empty(t, st.Problem)
}

func TestShortDisconnectClearsNothing(t *testing.T) {
	e := &replayer{engine: engine{keep: 100}}
	f, held, st := followed(e)
	send(f, e, 5)
	f.Check(context.Background())
	send(f, e, 5)
	require.Equal(t, e.published(), *held)
	require.Equal(t, Status{Connected: true, Replays: 1}, *st)
}

// Whatever is dropped, repeated or restarted, the index holds a part of what this incarnation of the engine
// published, without holes, and after a replay its end.
func TestReplaysProperty(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		e := &replayer{engine: engine{keep: 1 + rng.IntN(20)}}
		f, held, _ := followed(e)
		for range 200 {
			switch k := rng.IntN(40); {
			case k == 0:
				e.restart()
				e.cuts, e.drops = 0, nil
				f.Check(context.Background())
			case k == 1:
				f.Check(context.Background())
			case k == 2:
				e.cuts = rng.IntN(5)
			case k == 3:
				e.drops = func(uint64) bool { return rng.IntN(4) == 0 }
			case k < 8:
				e.publish()
			default:
				send(f, e, 1)
			}
			all := e.published()
			if n := len(*held); n > 0 {
				at := int(f.next)
				require.Equal(t, all[at-n:at], *held, "seed %d", seed)
			}
		}
		e.cuts, e.drops = 0, nil
		f.Check(context.Background())
		require.Equal(t, e.seq, f.next, "seed %d", seed)
	}
}
