package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/sim/baseline"
	"github.com/warmpath/warmpath/internal/router"
)

// Streams of randomness, all from one seed.
const (
	drawClients = 0xc11e
	drawRouters = 0x4077
)

// never is later than anything.
const never = time.Duration(math.MaxInt64)

// progressEvery is after how many arrivals progress is reported and the context checked.
const progressEvery = 128

// errSlow ends a run of the search for the capacity.
var errSlow = errors.New("sim: too many requests were too slow")

// Run sends a workload to a fleet of its own and returns what came of it.
func Run(ctx context.Context, prompts *Prompts, c Config) (*drive.Result, error) {
	r, err := finished(ctx, prompts, c)
	if err != nil {
		return nil, err
	}
	res := r.result()
	if len(r.Changes) > 0 {
		c.twin = true
		twin, err := finished(ctx, prompts, c)
		if err != nil {
			return nil, err
		}
		res.FleetChange = r.ledger.against(twin.ledger, len(r.machines)-r.Replicas, len(r.members()))
	}
	return res, nil
}

// finished is a run that has come to its end.
func finished(ctx context.Context, prompts *Prompts, c Config) (*run, error) {
	r, err := newRun(prompts, c)
	if err != nil {
		return nil, err
	}
	if n := len(r.Changes); n > 0 && (len(r.rs) == 0 || r.Changes[n-1].At > r.rs[len(r.rs)-1].At) {
		return nil, fmt.Errorf("sim: fleet changes: no request arrives after %v", r.Changes[n-1])
	}
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	return r, r.settled()
}

// run is one run of Run.
type run struct {
	Config
	*Prompts
	now      time.Duration
	machines []*machine
	byID     map[string]*machine
	routers  []*router.Router
	coarse   *coarse // nil unless the policy follows the server
	exact    *exact  // nil unless the policy follows the engines
	draw     *rand.Rand
	fleet    *baseline.Fleet
	share    *sharing
	scrape   time.Duration // when the baselines look at the engines next
	turnover turnover
	ledger   *ledger   // from the first change of the fleet on
	queue    []waiting // of all clients, in the order in which they came

	tokens   []uint32 // of the prompt that is being routed
	samples  []drive.Sample
	ended    int
	failed   int
	preempts int       // of measured requests
	warmKV   []float64 // ActiveKV of each engine when the warm-up ended; nil before
}

func newRun(prompts *Prompts, c Config) (*run, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	r := &run{
		Config: c, Prompts: prompts, samples: make([]drive.Sample, len(prompts.rs)), scrape: never, byID: make(map[string]*machine),
		draw: rand.New(rand.NewPCG(c.Seed, drawClients)),
	}
	prompts.cut(c.Engines[0].BlockSize)
	r.fleet = baseline.NewFleet(c.name(), c.Replicas, c.Engines)
	if r.fleet.ScrapeEvery > 0 {
		r.scrape = 0
	}
	n := c.Clients
	if c.Share == ShareCentral {
		n = 1
	}
	for i := range n {
		rt, err := r.router(i)
		if err != nil {
			return nil, err
		}
		r.routers = append(r.routers, rt)
	}
	switch observes := r.routers[0].ObservesCache(); {
	case observes && c.Share == ShareBroadcast:
		r.coarse = new(coarse)
	case observes && subscribers[c.name()]:
		r.exact = &exact{size: c.Engines[0].BlockSize}
	}
	for i := range c.Replicas {
		if err := r.newMachine(i); err != nil {
			return nil, err
		}
	}
	r.setFleet()
	r.turnover = turnover{planned: c.Changes, twin: c.twin}
	r.share = newSharing(r.routers, r.Interval, n > 1 && (c.Share == ShareLoad || c.Share == ShareBroadcast), r.coarse)
	return r, nil
}

// router builds that of client i.
func (r *run) router(i int) (*router.Router, error) {
	start := time.Unix(0, 0)
	adjust := func(o *router.Options) {
		o.Now = func() time.Time { return start.Add(r.now) }
		o.AfterFunc = func(time.Duration, func()) func() { return func() {} } // real time is nothing to virtual time; picks look, too
		o.Rand = rand.New(rand.NewPCG(r.Seed, drawRouters+uint64(i)<<32))
	}
	config := r.Channel
	p, err := baseline.New(r.name(), r.fleet)
	if err != nil {
		return nil, err
	}
	if p.Choose == nil {
		return router.FromConfig(&config, adjust)
	}
	config.Policy.Name, config.Policy.Config = "", nil
	return router.FromConfig(&config, func(o *router.Options) {
		adjust(o)
		o.Policy = p
	})
}

// all runs until the last request has ended. Of what happens at the same moment passes end first, then the fleet
// changes, load is reported and shared, baselines look, requests arrive, and those that wait give up. After the last
// arrival only passes and the patience of those that wait are left.
func (r *run) all(ctx context.Context) error {
	for arrived := 0; ; {
		at, m := r.nextStep()
		arrival, changes, shares, scrape := never, never, never, never
		if arrived < len(r.rs) {
			arrival, changes, shares, scrape = r.rs[arrived].At, r.turnover.next(), r.share.due(), r.scrape
		}
		switch next := min(at, changes, shares, scrape, arrival, r.impatient()); next {
		case never:
			return nil
		case at:
			if err := r.step(at, m); err != nil {
				return err
			}
		case changes:
			r.now = next
			if err := r.change(); err != nil {
				return err
			}
			r.serve()
		case shares:
			r.now = next
			r.share.tick()
		case scrape:
			r.now = next
			r.fleet.Scrape()
			r.scrape += r.fleet.ScrapeEvery
		case arrival:
			if err := r.check(ctx, arrived); err != nil {
				return err
			}
			r.now = next
			r.arrive(ctx, arrived)
			arrived++
		default:
			r.now = next
			r.giveUp()
		}
	}
}

// check checks the context and reports the progress, now and then.
func (r *run) check(ctx context.Context, arrived int) error {
	if arrived%progressEvery != 0 {
		return nil
	}
	if r.Progress != nil {
		r.Progress(drive.Progress{Sent: arrived, Done: r.ended, Errors: r.failed})
	}
	return ctx.Err()
}

// settled reports that nothing is left: every request has ended, no Router has a reservation.
func (r *run) settled() error {
	if r.ended != len(r.rs) {
		return fmt.Errorf("sim: %d of %d requests ended", r.ended, len(r.rs))
	}
	for i, rt := range r.routers {
		for _, rep := range rt.View().Replicas() {
			if rep.Ongoing() != 0 || rep.QueuedTokens() != 0 {
				return fmt.Errorf("sim: client %d still has %d reservations and %d tokens on %s", i, rep.Ongoing(),
					rep.QueuedTokens(), rep.ID)
			}
		}
		if err := rt.Close(); err != nil {
			return err
		}
	}
	return nil
}
