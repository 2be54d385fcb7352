package matrix

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/workload"
)

// Plan is what to run.
type Plan struct {
	Cells    []Cell
	Policies []string
	// Seeds is how many, from 1.
	Seeds int
	// Duration and WarmUp are those of generated workloads.
	Duration, WarmUp time.Duration
	// Trace is what cells of the trace replay, Jitter delays its requests.
	Trace  []workload.Request
	Jitter time.Duration
	// Dir is where results are kept; Code names the program that makes them.
	Dir, Code string
	// Workers is how many runs there are at once.
	Workers int
	// Log is called with the progress, from several goroutines but never at the same time.
	Log func(string)
	// Now is the clock for that; nil means the real one.
	Now func() time.Time
}

// proxies are the policies that are proxies in real life, or parts of one: they see all requests.
var proxies = []string{"ray_prefix", "smg_cache_aware", "smg_cache_aware_2025", "llmd_default", "dynamo", "dynamo_s16"}

// combination is a policy in a cell, with so many clients.
type combination struct {
	policy  string
	clients int
}

// runs are what is run in a cell with each seed: every policy, and proxies with one client too, where the cell has
// proxies.
func (c *Cell) runs(policies []string) (all []combination) {
	for _, policy := range policies {
		all = append(all, combination{policy, c.Clients})
	}
	for _, policy := range policies {
		if c.Proxies && c.Clients > 1 && slices.Contains(proxies, policy) {
			all = append(all, combination{policy, 1})
		}
	}
	return all
}

// traceWarmUp is not measured of a trace.
const traceWarmUp = 5 * time.Minute

// errNoTrace is a cell of the trace in a plan without one.
var errNoTrace = errors.New("matrix: a cell replays the trace, and there is none")

// group is a cell with one seed: all policies get the same requests.
type group struct {
	cell *Cell
	seed uint64
	todo []*Entry
}

// runner is a Run under way.
type runner struct {
	Plan
	start time.Time
	trace string // names the contents of Trace

	mu    sync.Mutex         // guards what follows; Log is called with it held
	rates map[string]float64 // capacities by rateKey
	done  int
	all   int
}

// Run runs what is not there yet.
func Run(ctx context.Context, p Plan) error {
	if err := Check(p.Cells); err != nil {
		return err
	}
	if len(p.Trace) == 0 && slices.ContainsFunc(p.Cells, func(c Cell) bool { return c.Workload == Trace }) {
		return errNoTrace
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return err
	}
	if p.Now == nil {
		p.Now = time.Now
	}
	r := newRunner(p)
	if err := r.findRates(ctx); err != nil {
		return err
	}
	groups := r.groups()
	r.start = p.Now()
	return parallel(ctx, p.Workers, groups, r.group)
}

func newRunner(p Plan) *runner {
	return &runner{Plan: p, trace: hashed(p.Trace), rates: map[string]float64{}}
}

// parallel does all the work with so many workers, and stops at the first error.
func parallel[T any](ctx context.Context, workers int, work []T, do func(context.Context, T) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(max(workers, 1))
	for _, w := range work {
		all.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return do(ctx, w)
		})
	}
	return all.Wait()
}

// times are how long requests of a cell arrive and how many of that are not measured.
func (p *Plan) times(c *Cell) (duration, warmUp time.Duration) {
	if c.Workload == Trace {
		warmUp = traceWarmUp
	} else {
		duration, warmUp = p.Duration, p.WarmUp
	}
	if c.Minutes > 0 {
		duration = minutes(c.Minutes)
	}
	if c.WarmUpMinutes > 0 {
		warmUp = minutes(c.WarmUpMinutes)
	}
	return duration, warmUp
}

func minutes(m float64) time.Duration { return time.Duration(m * float64(time.Minute)) }

// traffic is what arrives in a cell.
func (p *Plan) traffic(c *Cell) sim.Traffic {
	duration, _ := p.times(c)
	t := sim.Traffic{Workload: workload.Spec{Name: c.Workload, Unshared: c.Unshared, Duration: duration}, Burst: c.Burst}
	if c.Workload == Trace {
		t.Workload.Name, t.Trace, t.Copies, t.Jitter = "", p.Trace, c.Copies, p.Jitter
	}
	return t
}

// rateKey names what the capacity of a cell depends on.
func (r *runner) rateKey(c *Cell) string {
	duration, warmUp := r.times(c)
	trace := ""
	if c.Workload == Trace {
		trace = fmt.Sprint(r.trace, r.Jitter, c.Copies)
	}
	return hashed(c.Workload, trace, c.Unshared, c.Replicas, c.Presets, c.KVTokens, duration, warmUp)
}

// findRates finds the capacities of the cells' fleets, each once.
func (r *runner) findRates(ctx context.Context) error {
	var cells []*Cell
	for i := range r.Cells {
		c := &r.Cells[i]
		key := r.rateKey(c)
		if _, known := r.rates[key]; !known && c.Rate == 0 {
			r.rates[key] = 0
			cells = append(cells, c)
		}
	}
	return parallel(ctx, r.Workers, cells, r.findRate)
}

func (r *runner) findRate(ctx context.Context, c *Cell) error {
	_, warmUp := r.times(c)
	first := float64(c.Replicas)
	if c.Workload == Trace {
		first = max(1, first/float64(8*max(c.Copies, 1)))
	}
	rate, err := sim.Capacity(ctx, sim.Search{
		Traffic: r.traffic(c), First: first, Replicas: c.Replicas, Engines: c.config().Engines, WarmUp: warmUp, Dir: r.Dir,
	})
	if err != nil {
		return fmt.Errorf("cell %s: %w", c.Name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rates[r.rateKey(c)] = rate
	r.Log(fmt.Sprintf("%s: capacity %.4g", c.Name, rate))
	return nil
}

// groups is the work that is left, in the order of seeds.
func (r *runner) groups() []*group {
	var groups []*group
	for seed := uint64(1); seed <= uint64(r.Seeds); seed++ {
		for i := range r.Cells {
			g := &group{cell: &r.Cells[i], seed: seed}
			for _, one := range g.cell.runs(r.Policies) {
				e := r.entry(g, one)
				r.all++
				if r.kept(e) {
					r.done++
				} else {
					g.todo = append(g.todo, e)
				}
			}
			if len(g.todo) > 0 {
				groups = append(groups, g)
			}
		}
	}
	r.Log(fmt.Sprintf("%d of %d runs are there", r.done, r.all))
	r.all -= r.done
	r.done = 0
	return groups
}

// entry is a run yet without a result.
func (r *runner) entry(g *group, one combination) *Entry {
	key := r.rateKey(g.cell)
	e := &Entry{Cell: *g.cell, Policy: one.policy, Clients: one.clients, Seed: g.seed, Rate: g.cell.Rate}
	if e.Rate == 0 {
		e.Rate = r.rates[key] * g.cell.Load
	}
	e.Arguments = hashed(r.Code, key, e.Cell, one.policy, one.clients, g.seed, e.Rate)
	return e
}

// kept reports whether a run is there.
func (r *runner) kept(e *Entry) bool {
	old := load(file(r.Dir, e.Cell.Name, e.Policy, e.Clients, e.Seed))
	return old != nil && old.Arguments == e.Arguments
}

// group runs what is left of a cell and a seed.
func (r *runner) group(ctx context.Context, g *group) error {
	traffic := r.traffic(g.cell)
	rs, err := traffic.Requests(g.todo[0].Rate, g.seed)
	if err != nil {
		return fmt.Errorf("cell %s: %w", g.cell.Name, err)
	}
	before, prompts := r.Now(), sim.NewPrompts(rs)
	for _, e := range g.todo {
		if err := r.run(ctx, prompts, e); err != nil {
			return fmt.Errorf("cell %s, policy %s, seed %d: %w", g.cell.Name, e.Policy, g.seed, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done += len(g.todo)
	so := r.Now().Sub(r.start)
	left := time.Duration(float64(so) / float64(r.done) * float64(r.all-r.done))
	r.Log(fmt.Sprintf("%s, seed %d: %d runs over %d requests in %.0f s; %d of %d runs, %v so far, about %v to go",
		g.cell.Name, g.seed,
		len(g.todo), len(rs), r.Now().Sub(before).Seconds(), r.done, r.all, so.Round(time.Second), left.Round(time.Minute)))
	return nil
}

// run does one and keeps it.
func (r *runner) run(ctx context.Context, prompts *sim.Prompts, e *Entry) error {
	_, warmUp := r.times(&e.Cell)
	before := r.Now()
	config := e.Cell.config()
	config.Channel.Policy.Name, config.Clients, config.WarmUp, config.Seed = e.Policy, e.Clients, warmUp, e.Seed
	res, err := sim.Run(ctx, prompts, config)
	if err != nil {
		return err
	}
	if res.FirstError != nil {
		return res.FirstError
	}
	done := *e // and not e, which stays: a result has a sample of every request
	done.Result, done.Seconds = res, r.Now().Sub(before).Seconds()
	return sim.SaveJSON(file(r.Dir, e.Cell.Name, e.Policy, e.Clients, e.Seed), &done)
}

// Entry is the content of one run's file.
type Entry struct {
	// Arguments is a hash of all that the run depends on, the program included.
	Arguments string `json:"arguments"`
	Cell      Cell   `json:"cell"`
	Policy    string `json:"policy"`
	Clients   int    `json:"clients"`
	Seed      uint64 `json:"seed"`
	// Rate is requests per second, or how much faster than recorded the trace arrives.
	Rate float64 `json:"rate"`
	// Seconds is how long the run took.
	Seconds float64       `json:"seconds"`
	Result  *drive.Result `json:"result"`
}

// Program names this program by its contents.
func Program() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	return digest(b), err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// hashed is a hash of the arguments, which are numbers, strings, and lists and structs of these.
func hashed(args ...any) string {
	b, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return digest(b)
}

// file is where a run is kept.
func file(dir, cell, policy string, clients int, seed uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s_%s_%d_%d.json", cell, policy, clients, seed))
}

// load reads a run; nil if there is none that can be read.
func load(path string) *Entry {
	e := new(Entry)
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, e) != nil || e.Result == nil {
		return nil
	}
	return e
}
