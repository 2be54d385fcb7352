package drive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/workload"
)

// Options say how to put load on a target. Target and Clients are required.
type Options struct {
	// Target is what the channels dial.
	Target string
	// TargetOf is the target of each client in place of Target; nil = all have Target.
	TargetOf func(client int) string
	// Clients is the number of channels.
	Clients int
	// Config is the channels' configuration, the JSON object under "warmpath"; empty means the defaults.
	Config string
	// Dialect is one of Dialects; empty means the first.
	Dialect string
	// Model is what the target serves.
	Model Model
	// Speed is how many seconds of the workload pass in a second; 0 means 1.
	Speed float64
	// WarmUp is how much of the workload is sent and not measured, in its own time.
	WarmUp time.Duration
	// Timeout ends a call, in our time; 0 means never.
	Timeout time.Duration
	// Connect is how long to wait for the connections, of which each channel needs one; 0 means 10 s.
	Connect time.Duration
	// OwnClock has times measured by the client alone: no engine sees the whole of a call that two of them serve.
	OwnClock bool
	// Seed draws the client of each request.
	Seed uint64
	// Progress is called with what has happened so far, from one goroutine at a time; nil = none.
	Progress func(Progress)
	// Dial are more options for the channels; the default is no TLS.
	Dial []grpc.DialOption
	// Replicas are those to wait for, for a target that does not name them itself.
	Replicas []policy.Attributes
}

// Progress is how far a run is.
type Progress struct{ Sent, Done, Errors int }

// Sample is one request as it was measured. Durations are in the engines' time but for Lag.
type Sample struct {
	// At is when it was to arrive, WarmUp: it does not count.
	At     time.Duration
	WarmUp bool
	// Session is that of the request; empty = none.
	Session string
	// Lag is how much later than planned it was sent, in our time.
	Lag time.Duration
	// Waited is how long it waited in its client's queue, where that is known; the times below count it.
	Waited time.Duration
	// TTFT and Latency are the times to the first token and to the end, TPOT the mean time of a token after
	// the first, 0 where there was no other.
	TTFT, TPOT, Latency time.Duration
	// Prompt, Cached and Computed are prompt tokens: all, found in the cache, computed. Output is the tokens
	// of the answer.
	Prompt, Cached, Computed, Output int
	// Replica computed its prompt. Policy made the decision, and Reason is that of it.
	Replica string
	Policy  string
	Reason  policy.Reason
	// Err is nil if the whole answer came.
	Err error
}

// ErrUnreachable: no replica of the target took a connection in time.
var ErrUnreachable = errors.New("no replica answers")

// Run sends a workload, sorted by arrival, and returns one sample per request, in the same order. When the
// context ends it ends the calls under way and returns the context's error.
func Run(ctx context.Context, rs []workload.Request, o Options) ([]Sample, error) {
	o.Speed, o.Connect = cmp.Or(o.Speed, 1), cmp.Or(o.Connect, defaultConnect)
	switch {
	case o.Clients < 1:
		return nil, fmt.Errorf("drive: %d clients", o.Clients)
	case !(o.Speed > 0):
		return nil, fmt.Errorf("drive: speed %v is not positive", o.Speed)
	}
	send, err := senderFor(o.Dialect)
	if err != nil {
		return nil, err
	}
	channels, err := dial(ctx, &o)
	defer func() {
		for _, cc := range channels {
			cc.Close() //nolint:errcheck // the only error is that it was closed before.
		}
	}()
	if err != nil {
		return nil, err
	}
	if o.Dialect == "" || o.Dialect == DefaultDialect {
		o.Model.ask(ctx, channels[0])
	}
	r := run{Options: &o, send: send, samples: make([]Sample, len(rs))}
	r.all(ctx, rs, channels)
	return r.samples, ctx.Err()
}

// run is one run of Run.
type run struct {
	*Options
	send    sender
	samples []Sample

	done, errors atomic.Int64
}

// all sends every request at its time and waits for the answers.
func (r *run) all(ctx context.Context, rs []workload.Request, channels []*grpc.ClientConn) {
	rng := rand.New(rand.NewPCG(r.Seed, uint64(len(channels))))
	var calls sync.WaitGroup
	defer calls.Wait()
	var sent atomic.Int64
	if r.Progress != nil {
		defer Reporting(func() { r.Progress(Progress{int(sent.Load()), int(r.done.Load()), int(r.errors.Load())}) })()
	}
	start := time.Now()
	for i := range rs {
		due := start.Add(time.Duration(float64(rs[i].At) / r.Speed))
		if pause.For(ctx, time.Until(due)) != nil {
			return
		}
		channel := channels[rng.IntN(len(channels))]
		sent.Add(1)
		calls.Go(func() { r.one(ctx, channel, &rs[i], &r.samples[i], due) })
	}
	calls.Wait()
}

// Reporting calls report ten times a second until the function that it returns is called, which calls it once more.
func Reporting(report func()) (stop func()) {
	return pause.Run(func(ctx context.Context) {
		for range pause.Every(ctx, time.Second/10) {
			report()
		}
		report()
	})
}

// one sends one request and measures it.
func (r *run) one(ctx context.Context, cc *grpc.ClientConn, q *workload.Request, s *Sample, due time.Time) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	var d client.Decision
	ctx = client.WithDecision(ctx, &d)
	if q.Session != "" {
		ctx = client.WithSession(ctx, q.Session)
	}
	start := time.Now()
	a := r.send(ctx, cc, r.Model, q)
	r.measure(s, q, &a, &d, start, time.Since(start))
	s.Lag = start.Sub(due)
	if r.done.Add(1); s.Err != nil {
		r.errors.Add(1)
	}
}

// measure fills in a sample; took is the client's own measurement of the whole call.
func (r *run) measure(s *Sample, q *workload.Request, a *Answer, d *client.Decision, start time.Time,
	took time.Duration) {
	s.At, s.WarmUp, s.Session, s.Err = q.At, q.At < r.WarmUp, q.Session, a.Err
	s.Replica, s.Policy, s.Reason = cmp.Or(d.Prefill, d.Replica), d.Policy, d.Reason
	s.Prompt, s.Output = q.PromptTokens, a.Output
	if d.Usage.PromptTokens > 0 {
		s.Prompt = d.Usage.PromptTokens
	}
	switch cached, ok := a.Figure(grpcserver.TrailerCached); {
	case d.Usage.CachedTokens >= 0:
		s.Cached = d.Usage.CachedTokens
	case ok:
		s.Cached = int(cached)
	}
	s.Computed = s.Prompt - s.Cached
	if computed, ok := a.Figure(grpcserver.TrailerComputed); ok && d.Prefill == "" {
		s.Computed = int(computed)
	}
	ttft, first := a.Figure(grpcserver.TrailerTTFT)
	e2e, whole := a.Figure(grpcserver.TrailerE2E)
	if first && whole && d.Attempts <= 1 && !r.OwnClock {
		waited := r.scale(d.Queued)
		s.TTFT, s.Latency = waited+milliseconds(ttft), waited+milliseconds(e2e)
	} else {
		s.Latency = r.scale(took)
		if !a.First.IsZero() {
			s.TTFT = r.scale(a.First.Sub(start))
		}
	}
	if s.Output > 1 {
		s.TPOT = (s.Latency - s.TTFT) / time.Duration(s.Output-1)
	}
}

// scale turns a duration of ours into the engines'.
func (r *run) scale(d time.Duration) time.Duration { return time.Duration(float64(d) * r.Speed) }

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
