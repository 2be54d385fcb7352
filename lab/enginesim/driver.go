package enginesim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"
)

// ErrClosed ends what a Driver had not finished when it was closed.
var ErrClosed = errors.New("enginesim: the engine is closed")

// Pace is how a Driver's engine time runs.
type Pace struct {
	// Speed is how many seconds of engine time pass in a second; 0 means 1.
	Speed float64
	// Virtual lets engine time run only while there is work, as fast as the machine computes it: passes
	// take no time. Speed is not used then.
	Virtual bool
}

// Driver runs one engine for many goroutines. Every pass happens at its exact engine time, however late the
// machine is; requests arrive at the time of the clock. Safe for concurrent use.
type Driver struct {
	pace  Pace
	start time.Time
	wake  chan struct{} // an idle engine got work
	quit  chan struct{}
	ended chan struct{} // the goroutine is gone

	mu     sync.Mutex // guards what follows; held while the engine works, never while anything waits
	engine *Engine
	calls  map[*Call]struct{}
	closed bool
}

// NewDriver makes an engine and starts its clock and one goroutine, which Close ends.
func NewDriver(c Config, p Pace) (*Driver, error) {
	e, err := New(c)
	if err != nil {
		return nil, err
	}
	if p.Speed == 0 {
		p.Speed = 1
	}
	if !(p.Speed > 0) || math.IsInf(p.Speed, 0) {
		return nil, fmt.Errorf("enginesim: Speed %v is not positive", p.Speed)
	}
	d := &Driver{
		pace: p, start: time.Now(), engine: e, calls: map[*Call]struct{}{},
		wake: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}),
	}
	go d.run()
	return d, nil
}

// Close stops the engine. Calls that had not ended fail with ErrClosed.
func (d *Driver) Close() {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.quit)
		for c := range d.calls {
			c.set(c.count, true, ErrClosed)
		}
		clear(d.calls)
	}
	d.mu.Unlock()
	<-d.ended
}

// Config is the engine's config with its defaults filled in.
func (d *Driver) Config() Config { return d.engine.cfg }

// Snapshot is the engine's time, load and counters at one moment.
func (d *Driver) Snapshot() (now time.Duration, l Load, s Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now = d.catchUp()
	return now, d.engine.Load(), d.engine.Stats()
}

// Submit hands a request to the engine. The request's Data is the driver's.
func (d *Driver) Submit(r Request) (*Call, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	now := d.catchUp()
	c := &Call{driver: d, news: make(chan struct{}, 1)}
	c.received, c.receive = context.WithCancel(context.Background())
	r.Data = c
	seq, err := d.engine.Submit(now, r)
	if err != nil {
		return nil, err
	}
	c.seq = seq
	d.calls[c] = struct{}{}
	d.wakeUp()
	return c, nil
}

// wakeUp has the clock look at when the next pass ends.
func (d *Driver) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// now is the clock in engine time. Caller holds mu.
func (d *Driver) now() time.Duration {
	if d.pace.Virtual {
		return d.engine.Now()
	}
	return max(time.Duration(float64(time.Since(d.start))*d.pace.Speed), d.engine.Now())
}

// catchUp does every pass that is due and returns the time. Caller holds mu.
func (d *Driver) catchUp() time.Duration {
	now := d.now()
	for !d.closed {
		at, busy := d.engine.NextStep()
		if !busy || at > now {
			break
		}
		d.step(at)
	}
	return now
}

// step does one pass and delivers to the calls. Caller holds mu.
func (d *Driver) step(at time.Duration) {
	for _, ev := range d.engine.Step(at) {
		c := ev.Seq.req.Data.(*Call)
		if ev.Index < 0 {
			c.receive()
			continue
		}
		c.set(ev.Index+1, ev.Done, nil)
		if ev.Done {
			delete(d.calls, c)
		}
	}
}

func (d *Driver) run() {
	defer close(d.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		now := d.catchUp()
		at, busy := d.engine.NextStep()
		if d.pace.Virtual && busy && !d.closed {
			d.step(at)
		}
		d.mu.Unlock()
		switch {
		case !busy:
			timer.Stop()
		case d.pace.Virtual:
			timer.Reset(0)
			runtime.Gosched() // let others submit between passes
		default:
			timer.Reset(time.Duration(math.Ceil(float64(at-now) / d.pace.Speed)))
		}
		select {
		case <-timer.C:
		case <-d.wake:
		case <-d.quit:
			return
		}
	}
}

// Call is a request that a Driver runs. One goroutine waits for it; any may abort it.
type Call struct {
	driver *Driver
	seq    *Sequence
	news   chan struct{}

	received context.Context // ends once the KV of a request with Received has come, or the call has ended
	receive  func()          // ends received

	// Driver.mu guards what follows.
	count int
	done  bool
	err   error
}

// set notes how many tokens there are and whether the call has ended; the caller holds Driver.mu.
func (c *Call) set(count int, done bool, err error) {
	c.count, c.done, c.err = count, done, err
	if done {
		c.receive()
	}
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// Wait returns as soon as there are more than have tokens or the call has ended: how many there are, and
// whether it has ended. The error is the context's, ErrClosed, or nil; an aborted call ends without one.
func (c *Call) Wait(ctx context.Context, have int) (count int, done bool, err error) {
	for {
		c.driver.mu.Lock()
		count, done, err = c.count, c.done, c.err
		c.driver.mu.Unlock()
		if done || count > have {
			return count, done, err
		}
		select {
		case <-c.news:
		case <-ctx.Done():
			return count, false, ctx.Err()
		}
	}
}

// Abort ends the call at once and frees what it holds. A call that has ended stays as it is.
func (c *Call) Abort() {
	d := c.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.catchUp()
	if _, live := d.calls[c]; !live {
		return
	}
	d.engine.Abort(now, c.seq)
	delete(d.calls, c)
	c.set(c.count, true, nil)
}

// Received is closed once the KV of a request with Request.Received has come, or the call has ended.
func (c *Call) Received() <-chan struct{} { return c.received.Done() }

// Release frees what a call that has ended holds by Request.Hold; it does nothing twice.
func (c *Call) Release() {
	d := c.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.engine.Release(d.catchUp(), c.seq)
	d.wakeUp()
}

// Result is what became of the call, once it has ended; until then what is known so far.
func (c *Call) Result() Result {
	c.driver.mu.Lock()
	defer c.driver.mu.Unlock()
	return c.seq.result
}

// Token is token i of the output.
func (c *Call) Token(i int) uint32 { return c.seq.Token(i) }
