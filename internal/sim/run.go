package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/drive"
	"github.com/warmpath/warmpath/internal/enginesim"
	"github.com/warmpath/warmpath/internal/sim/baseline"
	"github.com/warmpath/warmpath/internal/workload"
)

// Streams of randomness, all from one seed.
const (
	drawClients = 0xc11e
	drawRouters = 0x4077
)

// never is later than anything.
const never = time.Duration(math.MaxInt64)

// progressEvery is after how many arrivals the progress is told and the context looked at.
const progressEvery = 128

// errSlow ends a run of the search for the capacity.
var errSlow = errors.New("sim: too many requests were too slow")

// Run sends a workload, sorted by arrival, to a fleet of its own and returns what came of it. The requests are
// only read.
func Run(ctx context.Context, rs []workload.Request, c Config) (*Result, error) {
	r, err := newRun(rs, c)
	if err != nil {
		return nil, err
	}
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	if err := r.settled(); err != nil {
		return nil, err
	}
	return r.result(), nil
}

// run is one run of Run.
type run struct {
	Config
	rs      []workload.Request
	now     time.Duration
	engines []*enginesim.Engine
	due     []time.Duration // when each engine's pass ends
	routers []*routing.Router
	draw    *rand.Rand
	fleet   *baseline.Fleet
	share   *sharing
	scrape  time.Duration // when the baselines look at the engines next

	tokens   []uint32 // of the prompt that is being routed
	samples  []drive.Sample
	ended    int
	failed   int
	preempts int       // of measured requests
	warmKV   []float64 // ActiveKV of each engine when the warm-up ended; nil before
}

// flight is a request under way.
type flight struct {
	req     routing.Request
	booking routing.Booking
	router  *routing.Router
	sample  *drive.Sample
}

func newRun(rs []workload.Request, c Config) (*run, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	r := &run{
		Config: c, rs: rs, samples: make([]drive.Sample, len(rs)), scrape: never,
		draw: rand.New(rand.NewPCG(c.Seed, drawClients)),
	}
	members := make([]routing.Member, c.Replicas)
	for i := range members {
		members[i].ID = "r" + strconv.Itoa(i)
	}
	r.fleet = baseline.NewFleet(c.name(), c.Replicas)
	for i := range c.Replicas {
		cfg := c.Engine
		cfg.Listener = r.fleet.Listener(i)
		e, err := enginesim.New(cfg)
		if err != nil {
			return nil, err
		}
		r.engines, r.due = append(r.engines, e), append(r.due, never)
	}
	r.fleet.Watch(r.engines)
	if r.fleet.ScrapeEvery > 0 {
		r.scrape = 0
	}
	n := c.Clients
	if c.Share == ShareCentral {
		n = 1
	}
	for i := range n {
		router, err := r.router(i)
		if err != nil {
			return nil, err
		}
		router.SetFleet(members)
		for _, m := range members {
			router.SetConnected(m.ID, true)
		}
		r.routers = append(r.routers, router)
	}
	r.share = newSharing(r.routers, r.Interval, c.Share == ShareLoad && n > 1)
	return r, nil
}

// router builds that of client i.
func (r *run) router(i int) (*routing.Router, error) {
	start := time.Unix(0, 0)
	adjust := func(o *routing.Options) {
		o.Now = func() time.Time { return start.Add(r.now) }
		o.Rand = rand.New(rand.NewPCG(r.Seed, drawRouters+uint64(i)<<32))
	}
	config := r.Channel
	p, err := baseline.New(r.name(), r.fleet)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return config.NewRouter(adjust)
	}
	config.Policy.Name, config.Policy.Config = "", nil
	return config.NewRouter(func(o *routing.Options) {
		adjust(o)
		o.Policy = p
	})
}

// all runs until the last request has ended. Of what happens at the same moment passes end first, then load is
// reported and shared, then requests arrive.
func (r *run) all(ctx context.Context) error {
	arrived := 0
	for {
		at, k := r.nextStep()
		if arrived == len(r.rs) {
			if at == never {
				return nil
			}
			if err := r.step(at, k); err != nil {
				return err
			}
			continue
		}
		arrival := r.rs[arrived].At
		switch shared := r.share.next; {
		case at <= arrival && at <= shared && at <= r.scrape:
			if err := r.step(at, k); err != nil {
				return err
			}
		case shared <= arrival && shared <= r.scrape:
			r.now = shared
			r.share.tick()
		case r.scrape <= arrival:
			r.now = r.scrape
			r.fleet.Scrape()
			r.scrape += r.fleet.ScrapeEvery
		default:
			if arrived%progressEvery == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
				if r.Progress != nil {
					r.Progress(drive.Progress{Sent: arrived, Done: r.ended, Errors: r.failed})
				}
			}
			r.now = arrival
			r.arrive(ctx, arrived)
			arrived++
		}
	}
}

// nextStep is the engine whose pass ends first, the first of those that end together.
func (r *run) nextStep() (at time.Duration, k int) {
	at = never
	for i, d := range r.due {
		if d < at {
			at, k = d, i
		}
	}
	return at, k
}

// client is the Router that a request comes to.
func (r *run) client(q *workload.Request) *routing.Router {
	n := uint64(r.draw.IntN(len(r.routers))) // drawn in any case: every request costs one draw
	if r.Affinity && q.Session != "" {
		n = xxh3.HashStringSeed(q.Session, r.Seed) % uint64(len(r.routers))
	}
	return r.routers[n]
}

// arrive routes a request and gives it to its engine.
func (r *run) arrive(ctx context.Context, i int) {
	q, s := &r.rs[i], &r.samples[i]
	if r.warmKV == nil && q.At >= r.WarmUp {
		r.warmKV = r.activeKV()
	}
	r.tokens = q.AppendTokens(r.tokens[:0])
	f := &flight{router: r.client(q), sample: s}
	f.req.ID, f.req.Session = q.ID, q.Session
	f.req.SetPrompt(routing.Prompt{Tokens: r.tokens})
	s.At, s.WarmUp = q.At, q.At < r.WarmUp
	s.Prompt = q.PromptTokens
	if err := f.router.Pick(ctx, &f.req, &f.booking); err != nil {
		r.fail(s, err)
		return
	}
	f.req.DropPrompt()
	d := &f.booking.Decision
	s.Replica, s.Reason = d.Replica.ID, d.Reason
	k := d.Replica.Index()
	e := r.engines[k]
	work := enginesim.FromTokens(q.ID, r.tokens, q.OutputTokens, e.Config().BlockSize, 0)
	work.Data = f
	if _, err := e.Submit(r.now, work); err != nil {
		f.booking.Release()
		f.router.Complete(&f.req, *d, routing.Outcome{Err: err, Sent: true, Usage: routing.NoUsage})
		r.fail(s, err)
		return
	}
	r.due[k], _ = e.NextStep()
}

func (r *run) fail(s *drive.Sample, err error) {
	s.Err = err
	r.ended++
	r.failed++
}

// step ends a pass of an engine.
func (r *run) step(at time.Duration, k int) error {
	r.now = at
	e := r.engines[k]
	for _, ev := range e.Step(at) {
		if ev.Index > 0 && !ev.Done {
			continue
		}
		f := ev.Seq.Request().Data.(*flight)
		if ev.Index == 0 {
			f.booking.PrefillDone()
		}
		if ev.Done {
			if err := r.end(f, ev.Seq); err != nil {
				return err
			}
		}
	}
	next, busy := e.NextStep()
	if !busy {
		next = never
	}
	r.due[k] = next
	return nil
}

// end closes the books on a request.
func (r *run) end(f *flight, seq *enginesim.Sequence) error {
	res, s := seq.Result(), f.sample
	if s.Latency > 0 {
		return fmt.Errorf("sim: request %s ended twice", f.req.ID)
	}
	s.TTFT, s.TPOT, s.Latency = res.TTFT(), res.TPOT(), res.End-res.Arrival
	s.Cached, s.Computed, s.Output = res.CachedTokens, res.ComputedTokens, res.OutputTokens
	r.ended++
	if !s.WarmUp {
		r.preempts += res.Preemptions
		if r.slow > 0 && !drive.Good(s.TTFT, s.TPOT) {
			if r.slow--; r.slow == 0 {
				return errSlow
			}
		}
	}
	f.booking.Release()
	f.router.Complete(&f.req, f.booking.Decision, routing.Outcome{
		Sent: true, FirstMessage: s.TTFT,
		Usage: routing.Usage{PromptTokens: s.Prompt, OutputTokens: s.Output, CachedTokens: s.Cached},
	})
	return nil
}

// settled reports that nothing is left: every request has ended, no Router has a booking.
func (r *run) settled() error {
	if r.ended != len(r.rs) {
		return fmt.Errorf("sim: %d of %d requests ended", r.ended, len(r.rs))
	}
	for i, router := range r.routers {
		for _, rep := range router.View().Replicas() {
			if rep.Ongoing() != 0 || rep.QueuedTokens() != 0 {
				return fmt.Errorf("sim: client %d still has %d bookings and %d tokens on %s", i, rep.Ongoing(), rep.QueuedTokens(), rep.ID)
			}
		}
		if err := router.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) activeKV() []float64 {
	kv := make([]float64, len(r.engines))
	for i, e := range r.engines {
		kv[i] = e.Stats().ActiveKV
	}
	return kv
}
