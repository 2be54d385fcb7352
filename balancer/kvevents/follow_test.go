package kvevents

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// engine is a publisher with a replay buffer, as far as a follower sees it.
type engine struct {
	life   int
	seq    uint64
	buffer []uint64 // numbers that are still there
	keep   int
	broken bool
	cuts   int                   // replays that will break off at once
	drops  func(seq uint64) bool // what a replay leaves out
}

func (e *engine) payload(seq uint64) []byte { return fmt.Appendf(nil, "%d/%d", e.life, seq) }

func (e *engine) publish() (uint64, []byte) {
	seq := e.seq
	e.seq++
	e.buffer = append(e.buffer, seq)
	if len(e.buffer) > e.keep {
		e.buffer = e.buffer[1:]
	}
	return seq, e.payload(seq)
}

func (e *engine) restart() { e.life, e.seq, e.buffer = e.life+1, 0, nil }

func (e *engine) replay(_ context.Context, from uint64, each func(uint64, []byte) error) error {
	if e.cuts--; e.broken || e.cuts >= 0 {
		return errors.New("broken")
	}
	for _, seq := range e.buffer {
		if seq >= from && (e.drops == nil || !e.drops(seq)) {
			if err := each(seq, e.payload(seq)); err != nil {
				return err
			}
		}
	}
	return nil
}

// followerOf returns a follower of the engine, and what it holds.
func followerOf(e *engine) (*follower, *[]string) {
	held := new([]string)
	return &follower{
		replay: e.replay,
		apply:  func(_ uint64, p []byte) { *held = append(*held, string(p)) },
		clear:  func() { *held = nil },
		count:  &kvevents.Followed{},
	}, held
}

func (e *engine) said() (all []string) {
	for seq := range e.seq {
		all = append(all, string(e.payload(seq)))
	}
	return all
}

func send(f *follower, e *engine, n int) {
	for range n {
		seq, payload := e.publish()
		f.accept(context.Background(), seq, payload)
	}
}

func TestGapsAreFilled(t *testing.T) {
	e := &engine{keep: 100}
	f, held := followerOf(e)
	send(f, e, 5)
	e.publish()
	e.publish()
	send(f, e, 2)
	require.Equal(t, e.said(), *held)
	require.Equal(t, kvevents.Followed{Gaps: 1, Replays: 1}, *f.count)

	e.publish() // the last one is lost: no gap shows it
	f.check(context.Background())
	require.Equal(t, e.said(), *held)
	require.Zero(t, f.count.Clears)
}

func TestWhoComesLateGetsTheBuffer(t *testing.T) {
	e := &engine{keep: 3}
	for range 10 {
		e.publish()
	}
	f, held := followerOf(e)
	f.check(context.Background())
	require.Equal(t, e.said()[7:], *held)
	send(f, e, 2)
	require.Equal(t, e.said()[7:], *held)
	require.Zero(t, f.count.Clears)
}

// A replay that is cut, or that lacks what the engine could not send at once, is asked for again.
func TestReplaysThatBreakOff(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(*engine)
		replays int64
	}{
		"cut": {func(e *engine) { e.cuts = 2 }, 3},
		"holes": {func(e *engine) {
			n := 0
			e.drops = func(seq uint64) bool { n++; return n%5 == 0 }
		}, 3},
		"short": {func(e *engine) {
			n := 0
			e.drops = func(seq uint64) bool { n++; return n > 4 && n < 10 }
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{keep: 100}
			f, held := followerOf(e)
			send(f, e, 5)
			for range 7 {
				e.publish()
			}
			c.spoil(e)
			send(f, e, 1)
			require.Equal(t, e.said(), *held)
			require.Zero(t, f.count.Clears)
			require.Equal(t, c.replays, f.count.Replays)
			require.NoError(t, f.err)
		})
	}
}

func TestWhatCannotBeHadClears(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*engine, *follower)
		left  int
	}{
		"short buffer": {func(e *engine, _ *follower) { e.keep, e.buffer = 2, nil }, 2},
		"no replay":    {func(_ *engine, f *follower) { f.replay = nil }, 1},
		"broken":       {func(e *engine, _ *follower) { e.broken = true }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{keep: 100}
			f, held := followerOf(e)
			send(f, e, 5)
			c.spoil(e, f)
			for range 4 {
				e.publish()
			}
			send(f, e, 1)
			all := e.said()
			require.Equal(t, all[len(all)-c.left:], *held)
			require.Equal(t, int64(1), f.count.Clears)
			require.Zero(t, f.count.Restarts)
		})
	}
}

func TestARestartClears(t *testing.T) {
	for _, after := range []int{0, 1, 3, 5, 6, 9} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			e := &engine{keep: 100}
			f, held := followerOf(e)
			send(f, e, 5)
			e.restart()
			for range after {
				e.publish()
			}
			f.check(context.Background()) // as after every new connection
			require.Equal(t, e.said(), *held)
			require.Equal(t, int64(1), f.count.Restarts)
			send(f, e, 3)
			require.Equal(t, e.said(), *held)
			require.Equal(t, int64(1), f.count.Clears)
		})
	}
	e := &engine{keep: 100}
	f, held := followerOf(e)
	f.replay = nil
	send(f, e, 5)
	e.restart()
	send(f, e, 2)
	require.Equal(t, e.said(), *held, "a number that goes back needs no replay")
}

func TestABlinkClearsNothing(t *testing.T) {
	e := &engine{keep: 100}
	f, held := followerOf(e)
	send(f, e, 5)
	f.check(context.Background())
	send(f, e, 5)
	require.Equal(t, e.said(), *held)
	require.Equal(t, kvevents.Followed{Replays: 1}, *f.count)
}

// Whatever is dropped, doubled or restarted: what is held is a part of what the engine said in this life, without
// holes, and after a question the end of it.
func TestFollowerProperty(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		e := &engine{keep: 1 + rng.IntN(20)}
		f, held := followerOf(e)
		for range 200 {
			switch k := rng.IntN(40); {
			case k == 0:
				e.restart()
				e.cuts, e.drops = 0, nil
				f.check(context.Background())
			case k == 1:
				f.check(context.Background())
			case k == 2:
				e.cuts = rng.IntN(5)
			case k == 3:
				e.drops = func(uint64) bool { return rng.IntN(4) == 0 }
			case k < 8:
				e.publish()
			default:
				send(f, e, 1)
			}
			all := e.said()
			if n := len(*held); n > 0 {
				at := int(f.next)
				require.Equal(t, all[at-n:at], *held, "seed %d", seed)
			}
		}
		e.cuts, e.drops = 0, nil
		f.check(context.Background())
		require.Equal(t, e.seq, f.next, "seed %d", seed)
	}
}
