package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/sim/baseline"
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
	return r.result(), nil
}

// finished is a run that has come to its end.
func finished(ctx context.Context, prompts *Prompts, c Config) (*run, error) {
	r, err := newRun(prompts, c)
	if err != nil {
		return nil, err
	}
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	return r, r.settled()
}

// machine is one engine.
type machine struct {
	id     string
	engine *enginesim.Engine
	due    time.Duration // when its pass ends; never if it is idle
}

// run is one run of Run.
type run struct {
	Config
	*Prompts
	now      time.Duration
	machines []*machine
	byID     map[string]*machine
	routers  []*router.Router
	exact    bool                 // the policy follows the engines' events
	changes  []policy.CacheChange // of the prompt that is being routed, for exact
	draw     *rand.Rand
	fleet    *baseline.Fleet
	share    *sharing
	polls    int
	scrape   time.Duration // when the baselines look at the engines next
	queue    []waiting     // of all clients, in the order in which they came
	pairs    int           // measured requests that were split
	moving   int           // prefill legs that have ended, whose KV has not moved yet

	tokens   []uint32 // of the prompt that is being routed
	samples  []drive.Sample
	ended    int
	failed   int
	preempts int // of measured requests
	seen     observed
	warmKV   []float64 // ActiveKV of each engine when the warm-up ended; nil before
}

func newRun(prompts *Prompts, c Config) (*run, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	r := &run{
		Config: c, Prompts: prompts, samples: make([]drive.Sample, len(prompts.rs)), scrape: never,
		byID: make(map[string]*machine),
		draw: rand.New(rand.NewPCG(c.Seed, drawClients)),
	}
	prompts.cut(c.Engines[0].BlockSize)
	r.fleet = baseline.NewFleet(c.name(), c.Replicas, c.Engines)
	if r.fleet.ScrapeEvery > 0 {
		r.scrape = 0
	}
	for i := range c.Clients {
		rt, err := r.router(i)
		if err != nil {
			return nil, err
		}
		r.routers = append(r.routers, rt)
	}
	observes, broadcast := r.routers[0].ObservesCache(), c.Share == ShareBroadcast
	r.exact = observes && !broadcast && !c.NoEvents && subscribers[c.name()]
	caches, err := r.start(observes && broadcast)
	if err != nil {
		return nil, err
	}
	if c.Clients > 1 && (c.Share == ShareLoad || broadcast) || len(caches) > 0 {
		r.share = newSharing(r.routers, r.Servers, r.Interval, caches)
	}
	return r, nil
}

// start starts the engines, which take turns where they differ, with empty caches, and gives every client the fleet.
// With indexed it returns the superblocks of each.
func (r *run) start(indexed bool) (caches []*contents, err error) {
	var members []router.Member
	for i := range r.Replicas {
		m := &machine{id: "r" + strconv.Itoa(i), due: never}
		cfg := r.Engines[i%len(r.Engines)]
		if indexed {
			caches = append(caches, newContents(m.id, cfg.BlockSize))
			cfg.Listener = caches[i]
		}
		if m.engine, err = enginesim.New(cfg); err != nil {
			return nil, err
		}
		r.machines, r.byID[m.id] = append(r.machines, m), m
		r.fleet.Watch(m.engine)
		members = append(members, router.Member{Attributes: policy.Attributes{ID: m.id, Role: r.role(i)}})
	}
	for _, rt := range r.routers {
		rt.Fleet.Set(members)
		for _, m := range members {
			rt.Fleet.SetConnected(m.ID, true)
		}
	}
	return caches, nil
}

// router builds that of client i.
func (r *run) router(i int) (*router.Router, error) {
	start := time.Unix(0, 0)
	adjust := func(o *router.Options) {
		o.Now = func() time.Time { return start.Add(r.now) }
		o.AfterFunc = func(time.Duration, func()) func() { return func() {} } // real time is nothing to virtual time; picks look, too
		o.Split = baseline.Split(r.Split)
		o.Rand = rand.New(rand.NewPCG(r.Seed, drawRouters+uint64(i)<<32))
	}
	config := r.Channel
	p := baseline.New(r.name(), r.fleet)
	if p.Choose == nil {
		return router.FromConfig(&config, adjust)
	}
	config.Policy.Name, config.Policy.Config = "", nil
	return router.FromConfig(&config, func(o *router.Options) {
		adjust(o)
		o.Policy = p
	})
}

// all runs until the last request has ended. Of what happens at the same moment passes end first, then load is reported
// and shared, baselines look, requests arrive, and those that wait give up. After the last arrival only passes and the
// patience of those that wait are left.
func (r *run) all(ctx context.Context) error {
	for arrived := 0; ; {
		at, m := r.nextStep()
		arrival, shares, scrape := never, never, never
		if arrived < len(r.rs) {
			arrival, shares, scrape = r.arrival(arrived), r.share.due(), r.scrape
		}
		switch next := min(at, shares, scrape, arrival, r.impatient()); next {
		case never:
			return nil
		case at:
			if err := r.step(at, m); err != nil {
				return err
			}
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

// arrival is when request i arrives; never if it waits for another to end.
func (r *run) arrival(i int) time.Duration {
	switch {
	case r.AtOnce == 0:
		return r.rs[i].At
	case i-r.ended < r.AtOnce:
		return r.now
	}
	return never
}

// nextStep is the machine whose pass ends first, the first of those that end together; nil if all are idle.
func (r *run) nextStep() (at time.Duration, first *machine) {
	at = never
	for _, m := range r.machines {
		if m.due < at {
			at, first = m.due, m
		}
	}
	return at, first
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
	if r.moving != 0 {
		return fmt.Errorf("sim: the KV of %d prompts did not move", r.moving)
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
