package chaos

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/lab/drive"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/workload"
)

// An Outcome is what became of a call.
type Outcome string

// The outcomes.
const (
	// Served: the whole answer came.
	Served Outcome = "served"
	// Cut: it failed after a part of the answer had come, which no retry may repeat.
	Cut Outcome = "cut"
	// SentTwice: it failed before anything had come, in an attempt that was not its first.
	SentTwice Outcome = "sent_twice"
	// TimedOut: its deadline came first.
	TimedOut Outcome = "timed_out"
	// Refused: there was no room, and the refusal gave the reason.
	Refused Outcome = "refused"
	// Lost: it failed although it could have been served.
	Lost Outcome = "lost"
)

// Call is one call as it was seen. Times are since the load began.
type Call struct {
	Index, Session, Client int
	Unary, Long            bool
	Start, First, End      time.Duration // First is 0 where nothing came
	Replica                string        // of the last attempt; "" if there was none
	Attempts               int
	Received               int // tokens
	Prompt, Cached         int // tokens, of those that were served
	Outcome                Outcome
	Err                    error
}

// outcomeOf judges a call that has ended.
func outcomeOf(c *Call) Outcome {
	switch code := status.Code(c.Err); {
	case c.Err == nil:
		return Served
	case code == codes.DeadlineExceeded:
		return TimedOut
	case c.Received > 0:
		return Cut
	case code == codes.ResourceExhausted:
		return Refused
	case c.Attempts > 1:
		return SentTwice
	}
	return Lost
}

// load sends calls at even distances until it is stopped.
type load struct {
	*Options
	channels   []*grpc.ClientConn
	longEvery  int // one stream in so many is long; 0 = none
	longTokens int

	distance atomic.Int64 // between two calls, as a time.Duration
	start    time.Time
	slots    chan struct{} // one for each call under way
	held     atomic.Int64  // calls that were not sent for want of one, or of this machine's time
	calls    sync.WaitGroup

	mu     sync.Mutex // guards what follows; nothing is called under it
	begun  int        // calls
	left   []int      // of each round, calls that have not ended
	ended  []Call
	failed int
}

func (l *load) now() time.Duration { return time.Since(l.start) }

func (l *load) setRate(perSecond float64) { l.distance.Store(int64(float64(time.Second) / perSecond)) }

// run sends until the context sending ends, and waits for the answers, which come until ctx ends.
func (l *load) run(ctx, sending context.Context) {
	defer l.calls.Wait()
	rng := rand.New(rand.NewPCG(l.Seed, uint64(len(l.channels))))
	order := rng.Perm(l.Sessions)
	due := l.start
	for i := 0; ; i++ {
		if pause.For(sending, time.Until(due)) != nil {
			return
		}
		select { // a generator that is never held back is open-loop
		case l.slots <- struct{}{}:
		case <-sending.Done():
			return
		}
		if late := time.Since(due); late > hopeless { // what could not be sent is not made up for
			l.held.Add(int64(late) / l.distance.Load())
			due = due.Add(late)
		}
		if i%l.Sessions == 0 && i > 0 {
			rng.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		}
		c := Call{Index: i, Session: order[i%l.Sessions], Client: rng.IntN(len(l.channels)), Unary: i%2 == 0}
		c.Long = l.longEvery > 0 && !c.Unary && i/2%l.longEvery == 0
		l.begin()
		l.calls.Go(func() {
			c.Start = l.now()
			l.send(ctx, l.channels[c.Client], &c)
			<-l.slots
			l.end(&c)
		})
		due = due.Add(time.Duration(l.distance.Load()))
	}
}

// hopeless is how late the generator may be and still send everything.
const hopeless = time.Second

func (l *load) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun%l.Sessions == 0 {
		l.left = append(l.left, l.Sessions)
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
	l.left[c.Index/l.Sessions]--
}

// progress is how many calls have begun, ended and failed.
func (l *load) progress() drive.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return drive.Progress{Sent: l.begun, Done: len(l.ended), Errors: l.failed}
}

// rounds returns a function that reports whether n whole rounds that begin from now on have been answered.
func (l *load) rounds(n int) (answered func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := (l.begun + l.Sessions - 1) / l.Sessions
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.left) >= first+n && !slices.ContainsFunc(l.left[first:first+n], func(open int) bool { return open > 0 })
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

// send sends the call and reads its answer to the end.
func (l *load) send(ctx context.Context, cc *grpc.ClientConn, c *Call) {
	var d client.Decision
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	ctx = client.WithDecision(client.WithSession(ctx, "session-"+strconv.Itoa(c.Session)), &d)
	q := l.request(c)
	var a drive.Answer
	if c.Unary {
		_, a.Err = vllmpb.NewInferenceClient(cc).Generate(ctx, drive.InferenceRequest(drive.Model{}, q), grpc.Trailer(&a.Trailer))
		if a.Err == nil {
			a.First = time.Now()
		}
	} else {
		a = drive.SendInference(ctx, cc, drive.Model{}, q)
	}
	if c.Err, c.Received = a.Err, a.Output; !a.First.IsZero() {
		c.First = a.First.Sub(l.start)
	}
	c.End = l.now()
	c.Replica, c.Attempts = d.Replica, d.Attempts
	if c.Outcome = outcomeOf(c); c.Outcome == Served {
		c.Prompt = l.PromptTokens + freshTokens
		cached, _ := a.Figure(grpcserver.TrailerCached) // 0 is what a replica without the trailer has
		c.Cached = int(cached)
	}
}

// freshTokens is what a prompt has of its own.
const freshTokens = 32

// request is what the call sends: the session's prompt and some tokens of its own.
func (l *load) request(c *Call) *workload.Request {
	id, output := "chaos-"+strconv.Itoa(c.Index), l.OutputTokens
	if c.Long {
		output = l.longTokens
	}
	return &workload.Request{
		ID: id, PromptTokens: l.PromptTokens + freshTokens, OutputTokens: output, Segments: []workload.Segment{
			{Seed: l.Seed<<32 + uint64(c.Session), Len: int32(l.PromptTokens)},
			{Seed: workload.OutputSeed(id), Len: freshTokens},
		},
	}
}
