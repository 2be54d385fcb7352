package kvevents

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/zeebo/xxh3"
)

// gapTries is how often what is missing is asked for without getting any further, before it is given up: what brings it
// may be cut with the connection that lost it.
const gapTries = 3

var errNoReplay = errors.New("kvevents: replays do not bring what comes live: is it the publisher's own replay socket?")

// Replay calls each for every message that the engine still has, from a number on, in order, until each returns false.
type Replay func(ctx context.Context, from uint64, each func(seq uint64, payload []byte) bool) error

// Sequence keeps the messages of one publisher in order, over its connections. It belongs to one goroutine.
//
// A message is identified by its number and a hash of its content. After a connection, and at a gap, the engine is
// asked to replay what it has from the message applied last on: if that message comes first, unchanged, it is the
// engine that was followed.
type Sequence struct {
	apply func(m message)
	clear func() // forgets all that was applied
	note  func(do func(*Status))

	any     bool   // something was applied since the last clear
	next    uint64 // the number that comes next
	print   uint64 // of the message before it
	confirm bool   // the message applied last is to come first
	asked   int    // how often what comes next was asked for

	replay Replay    // nil where the engine has no replay socket
	whole  time.Time // when the last replay began that came to its end
	live   uint64    // the number behind the last one that came live; 0 before one
	left   int       // messages left out in a row because no replay brought them
	stale  error     // why replays bring nothing; nil if they do
}

// Sequence returns what the messages of a socket go through until the context ends. replay may be nil.
func (s *Stream) Sequence(ctx context.Context, decode Decoder, replay Replay) *Sequence {
	q := &Sequence{clear: func() { s.lose() }, note: s.Update, apply: func(m message) {
		b := decode(ctx, m.payload)
		s.apply(ctx, m.seq, &b)
	}}
	if replay != nil {
		q.replay = func(ctx context.Context, from uint64, each func(uint64, []byte) bool) error {
			select {
			case s.replays <- struct{}{}:
				defer func() { <-s.replays }()
				return replay(ctx, from, each)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return q
}

// message is a message of a socket.
type message struct {
	seq     uint64
	print   uint64 // hash of its content
	payload []byte // read once it is its turn
}

// open is called before a replay: the number that it is to begin with.
func (q *Sequence) open() (start uint64) {
	if q.confirm = q.any; q.any {
		return q.next - 1
	}
	return 0
}

// accept takes a message. It returns true if what comes next must be asked for.
func (q *Sequence) accept(m message) (again bool) {
	if q.confirm {
		return q.confirmed(m)
	}
	switch {
	case !q.any, m.seq == q.next:
	case m.seq < q.next:
		q.restarted()
		return true
	case q.asked < gapTries:
		if q.asked++; q.asked == 1 {
			q.note(func(st *Status) { st.Gaps++ })
		}
		return true
	default:
		q.lost()
	}
	q.take(m)
	return false
}

// confirmed takes the first message of a replay, which is the one applied last.
func (q *Sequence) confirmed(m message) (again bool) {
	last := q.next - 1
	q.confirm = false
	switch {
	case m.seq == last && m.print == q.print:
		if q.next == q.live {
			q.stale = nil
		}
		return false
	case m.seq > last:
		q.lost() // it does not reach back so far
	default:
		q.restarted()
	}
	return true
}

func (q *Sequence) take(m message) {
	q.apply(m)
	q.any, q.next, q.print, q.asked = true, m.seq+1, m.print, 0
}

// lost clears because what was missed cannot be had.
func (q *Sequence) lost() {
	q.note(func(st *Status) { st.Clears++ })
	q.clear()
	q.any, q.next, q.asked = false, 0, 0
}

func (q *Sequence) restarted() {
	q.note(func(st *Status) { st.Restarts++ })
	q.lost()
	q.live = 0
}

// Live takes a message of a socket on which every message comes once, and has those before it replayed that are
// missing, also those before the first. A message that a whole replay after it does not bring is left out: it is of an
// engine that was restarted since, or comes with the replay for the next one. After gapTries such replays what was
// missed counts as lost.
func (q *Sequence) Live(ctx context.Context, seq uint64, payload []byte, came time.Time) {
	if seq > q.next && came.Before(q.whole) {
		return
	}
	if seq < q.live {
		q.restarted()
		q.Check(ctx)
	}
	for try := 0; try < gapTries && !q.any && seq > 0; try++ { // the replay failed, or came before the subscription
		if q.Check(ctx) {
			break
		}
	}
	live := q.live
	q.live = seq + 1
	m := message{seq: seq, print: printOf(payload), payload: payload}
	for q.next <= seq && q.accept(m) { // else a replay had it already
		before := q.next
		if whole := q.Check(ctx); !whole || q.next != before && q.any {
			continue
		}
		if q.left++; q.left < gapTries {
			q.asked, q.live = 1, min(q.live, live)
			return
		}
		q.asked, q.stale = gapTries, errNoReplay
		q.note(func(st *Status) { st.Problem = errNoReplay.Error() })
	}
	q.left = 0
}

// Check has the engine replay all that was not applied yet, and notices whether it is still the same. It asks again as
// long as that gets further: engines drop what they cannot send at once. It reports whether the last replay came to
// its end.
func (q *Sequence) Check(ctx context.Context) (whole bool) {
	for again := q.replay != nil; again && ctx.Err() == nil; {
		from := q.open()
		next, began := q.next, time.Now()
		again = false
		err := q.replay(ctx, from, func(seq uint64, payload []byte) bool {
			if q.confirm || !q.any || seq >= q.next {
				again = q.accept(message{seq: seq, print: printOf(payload), payload: payload})
			}
			return !again
		})
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			again = q.next > next
		case q.confirm: // it has published less than was received
			q.restarted()
			again = true
		case !again:
			q.whole = began
		}
		q.confirm, whole = false, err == nil
		q.note(func(st *Status) {
			st.Replays++
			if err != nil {
				st.ReplayErrors++
			}
			if p := cmp.Or(err, q.stale); st.Connected {
				st.Problem = ""
				if p != nil {
					st.Problem = p.Error()
				}
			}
		})
	}
	return whole
}

// printOf is a hash of a message that is never 0.
func printOf(payload []byte) uint64 { return xxh3.Hash(payload) | 1 }
