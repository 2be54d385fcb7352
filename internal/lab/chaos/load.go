package chaos

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"google.golang.org/grpc"
)

// load sends calls at even distances until it is stopped.
type load struct {
	channels     []*grpc.ClientConn
	sessions     int
	promptTokens int
	outputTokens int
	longEvery    int // one stream in so many is long; 0 = none
	longTokens   int
	timeout      time.Duration
	seed         uint64

	rate  atomic.Uint64 // calls per second, as math.Float64bits
	start time.Time
	slots chan struct{} // one for each call under way
	held  atomic.Int64  // calls that were not sent for want of one, or of this machine's time
	calls sync.WaitGroup

	mu      sync.Mutex    // guards what follows; nothing is called under it
	begun   int           // calls
	left    []int         // of each round, calls that have not ended
	changed chan struct{} // closed when a round has ended
	ended   []Call
	failed  int
}

func (l *load) now() time.Duration { return time.Since(l.start) }

func (l *load) setRate(perSecond float64) { l.rate.Store(math.Float64bits(perSecond)) }

func (l *load) distance() time.Duration {
	return time.Duration(float64(time.Second) / math.Float64frombits(l.rate.Load()))
}

// run sends until stop is closed or the context ends, and waits for the answers.
func (l *load) run(ctx context.Context, stop <-chan struct{}) {
	defer l.calls.Wait()
	rng := rand.New(rand.NewPCG(l.seed, uint64(len(l.channels))))
	order := rng.Perm(l.sessions)
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := l.start
	for i := 0; ; i++ {
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
		if !l.slot(ctx, stop) {
			return
		}
		if late := time.Since(due); late > hopeless { // what could not be sent is not made up for
			l.held.Add(int64(late / l.distance()))
			due = due.Add(late)
		}
		if i%l.sessions == 0 && i > 0 {
			rng.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		}
		c := Call{Index: i, Session: order[i%l.sessions], Client: rng.IntN(len(l.channels)), Unary: i%2 == 0}
		c.Long = l.longEvery > 0 && !c.Unary && i/2%l.longEvery == 0
		l.begin()
		l.calls.Go(func() {
			c.Start = l.now()
			l.send(ctx, l.channels[c.Client], &c)
			<-l.slots
			l.end(&c)
		})
		due = due.Add(l.distance())
	}
}

// hopeless is how late the generator may be and still send everything.
const hopeless = time.Second

// slot waits for room. A generator that is never held back is open-loop.
func (l *load) slot(ctx context.Context, stop <-chan struct{}) bool {
	select {
	case l.slots <- struct{}{}:
		return true
	default:
	}
	select {
	case l.slots <- struct{}{}:
		return true
	case <-stop:
	case <-ctx.Done():
	}
	return false
}

func (l *load) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun%l.sessions == 0 {
		l.left = append(l.left, l.sessions)
	}
	l.begun++
}

func (l *load) end(c *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, *c)
	if c.Err != nil {
		l.failed++
	}
	round := c.Index / l.sessions
	if l.left[round]--; l.left[round] == 0 {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// progress is how many calls have begun, ended and failed.
func (l *load) progress() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Progress{Sent: l.begun, Done: len(l.ended), Failed: l.failed}
}

// rounds waits until n whole rounds that begin from now on have been answered.
func (l *load) rounds(ctx context.Context, n int) error {
	l.mu.Lock()
	first := (l.begun + l.sessions - 1) / l.sessions
	l.mu.Unlock()
	for {
		l.mu.Lock()
		open, changed := max(first+n-len(l.left), 0), l.changed
		for i := first; i < min(first+n, len(l.left)); i++ {
			if l.left[i] > 0 {
				open++
			}
		}
		l.mu.Unlock()
		if open == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// history are the calls that have ended.
func (l *load) history() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended[:len(l.ended):len(l.ended)]
}

// size is about how many bytes the history takes, which grows with the run and is no fault of the tested code.
func (l *load) size() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(cap(l.ended)) * uint64(unsafe.Sizeof(Call{}))
}
