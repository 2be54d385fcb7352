package kvevents

import (
	"context"
	"errors"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// follower keeps the messages of one publisher in order. It belongs to one goroutine.
//
// A message is known again by its number and a hash of its bytes: the engine whose replay begins with the message that
// was applied last, unchanged, is the engine that was followed.
type follower struct {
	// replay is nil where the engine has no replay socket.
	replay func(ctx context.Context, from uint64, each func(seq uint64, payload []byte) error) error
	// apply takes a message in; clear forgets all that was applied.
	apply func(seq uint64, payload []byte)
	clear func()
	count *kvevents.Followed
	err   error // of the last replay

	any   bool   // something was applied since the last clear
	next  uint64 // the number that comes next
	print uint64 // of the message before it

	live    bool // a message came on this connection or an earlier one, since the last clear
	highest uint64
}

var (
	errRestarted = errors.New("kvevents: the engine was restarted")
	errHole      = errors.New("kvevents: messages are missing in a replay")
)

// replayTries is how often what is missing is asked for without getting any further, before it is given up: a replay
// may be cut with the connection that lost the message.
const replayTries = 3

// accept takes a live message.
func (f *follower) accept(ctx context.Context, seq uint64, payload []byte) {
	if f.live && seq <= f.highest {
		f.restarted()
		f.check(ctx)
	}
	f.live, f.highest = true, seq
	if f.any && seq > f.next {
		f.count.Gaps++
	}
	for tries := 0; tries < replayTries && f.next < seq; tries++ {
		before := f.next
		if f.check(ctx); f.next > before {
			tries = -1
		} else if f.err == nil {
			break
		}
	}
	switch {
	case !f.any || seq == f.next:
		f.take(seq, payload)
	case seq < f.next: // the replay had it already
	default:
		f.lost()
		f.take(seq, payload)
	}
}

// check asks the engine for all that was not applied yet, and whether it is still the same. It asks again as long as a
// replay that breaks off gets it further: engines drop what they cannot send at once.
func (f *follower) check(ctx context.Context) {
	if f.replay == nil {
		return
	}
	for {
		before := f.next
		f.count.Replays++
		err := f.catchUp(ctx)
		if errors.Is(err, errRestarted) {
			f.restarted()
			err = f.catchUp(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if f.err = err; err == nil {
			return
		}
		f.count.ReplayErrors++
		if f.next <= before {
			return
		}
	}
}

func (f *follower) catchUp(ctx context.Context) error {
	begin := f.next
	replayed := func(seq uint64, payload []byte) error {
		switch {
		case f.any && seq < f.next:
			return nil
		case f.any && seq > f.next && f.next > begin:
			return errHole
		case f.any && seq > f.next:
			f.lost() // asked for, and not there
		}
		f.take(seq, payload)
		return nil
	}
	if !f.any {
		return f.replay(ctx, 0, replayed)
	}
	last, print := f.next-1, f.print
	known := false
	err := f.replay(ctx, last, func(seq uint64, payload []byte) error {
		switch {
		case known:
			return replayed(seq, payload)
		case seq < last:
		case seq == last && xxh3.Hash(payload) == print:
			known = true
		case seq == last:
			return errRestarted
		default:
			known = true
			f.lost() // the buffer reaches back less far than needed
			f.take(seq, payload)
		}
		return nil
	})
	if err == nil && !known {
		return errRestarted // it has published less than was received
	}
	return err
}

func (f *follower) take(seq uint64, payload []byte) {
	f.apply(seq, payload)
	f.any, f.next, f.print = true, seq+1, xxh3.Hash(payload)
}

// lost clears because what was missed cannot be had.
func (f *follower) lost() {
	f.count.Clears++
	f.clear()
	f.any, f.next = false, 0
}

func (f *follower) restarted() {
	f.count.Restarts++
	f.lost()
	f.live = false
}
