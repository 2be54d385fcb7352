package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/report"
	"github.com/warmpath/warmpath/internal/lab/sim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// maxSeeds bounds --seeds.
const maxSeeds = 1000

// maxCopies bounds --copies.
const maxCopies = 1000

type simulate struct {
	engines   fleetFlags
	output    outputFlags
	many      matrixFlags
	trace     string
	format    string
	workload  string
	duration  time.Duration
	unshared  float64
	copies    int
	replicas  int
	clients   int
	ongoing   int
	queued    int
	patience  time.Duration
	policies  []string
	share     string
	interval  time.Duration
	affinity  bool
	changes   []string
	turnover  []sim.Change // parsed from changes
	rateScale float64
	load      float64
	jitter    time.Duration
	warmUp    time.Duration
	good      drive.Targets
	seed      uint64
	seeds     int
	recorded  []workload.Request // the trace, as it is in the file
	configs   []enginesim.Config
}

func newSim() *cobra.Command {
	var s simulate
	c := &cobra.Command{
		Use:   "sim --trace FILE --format FORMAT | --workload NAME | --matrix FILE --results DIR",
		Short: "Compare policies on a trace or a workload in virtual time, many clients at once",
		Long: "sim runs the product's own policies, and baselines written from other projects' published rules, over\n" +
			"simulated engines in virtual time: the effect of each policy on a trace, for one client or for many that do\n" +
			"not see each other. The same seed gives the same bytes.\n\n" +
			"With --matrix it runs many such cells, goes on where it was interrupted, and judges over all of them.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.many.check(c); err != nil {
				return err
			}
			if s.many.matrix != "" {
				return s.runMatrix(c.Context(), c)
			}
			if err := s.check(c); err != nil {
				return err
			}
			rep, err := s.run(c.Context(), c)
			if err != nil {
				return err
			}
			return s.output.write(c, rep)
		},
	}
	s.flags(c.Flags())
	return c
}

func (s *simulate) flags(f *pflag.FlagSet) {
	f.StringVar(&s.trace, "trace", "", "the `file` with the requests, one JSON object a line")
	f.StringVar(&s.format, "format", "", "the `format` of the trace: "+strings.Join(workload.Formats, ", "))
	f.StringVar(&s.workload, "workload", "", "generate this `workload` instead: "+strings.Join(workload.Names(), ", "))
	f.DurationVar(&s.duration, "duration", 35*time.Minute,
		"`time` in which a generated workload arrives, warm-up included")
	f.Float64Var(&s.unshared, "unshared", 0,
		"add prompts that share nothing to a generated workload until they are this `part` of its prompt tokens")
	f.IntVar(&s.copies, "copies", 1,
		"overlay this `number` of copies of the trace that share nothing but its block 0: more load with the same "+
			"think times")
	f.IntVar(&s.replicas, "replicas", 16, "`number` of engines")
	f.IntVar(&s.clients, "clients", 1, "`number` of clients, each with a Router of its own")
	f.StringSliceVar(&s.policies, "policies",
		[]string{"round_robin", "power_of_two_choices", "least_tokens", policy.Default},
		"the `policies` to compare: "+strings.Join(sim.Policies(), ", "))
	f.IntVar(&s.ongoing, "max-ongoing", 0,
		"a client gives an engine this `number` of requests at once, and the others wait in its queue; 0 = no bound")
	f.IntVar(&s.queued, "max-queued", 0,
		"`number` of requests that wait in a client's queue; one more is refused. 0 = 1,000, -1 = no bound")
	f.DurationVar(&s.patience, "patience", 0, "how long after its arrival a request that waits gives up; 0 = never")
	f.StringVar(&s.share, "share", string(sim.ShareNone),
		"`what` clients know of each other: "+strings.Join(sim.Shares, ", "))
	f.DurationVar(&s.interval, "broadcast-interval", sim.DefaultInterval,
		"`time` between two reports of a client, and two broadcasts of the server")
	f.StringSliceVar(&s.changes, "fleet-change", nil,
		"what happens to the fleet and `when`: 10m:+1, 10m:-1, 10m:restart (one after the other); each policy runs "+
			"twice, to tell what it cost")
	f.BoolVar(&s.affinity, "client-affinity", false,
		"send all requests of a session to one client, instead of each to a random one")
	f.Float64Var(&s.rateScale, "rate-scale", 1, "divide the times of the trace by this")
	f.Float64Var(&s.load, "load", 0.7, "part of the fleet's capacity to use; found by a search, and remembered")
	f.DurationVar(&s.jitter, "jitter", 3*time.Second, "delay every request of the trace by up to this `time` at random")
	f.DurationVar(&s.warmUp, "warmup", 300*time.Second, "do not measure the requests of this first `time`")
	f.DurationVar(&s.good.TTFT, "good-ttft", drive.GoodTTFT,
		"a request is good if its first token comes within this `time`, and…")
	f.DurationVar(&s.good.TPOT, "good-tpot", drive.GoodTPOT,
		"… every further one within this `time` in the mean; goodput and capacity go by it")
	f.Uint64Var(&s.seed, "seed", 1,
		"seed of the workload or the jitter, of the client of each request, and of the policies")
	f.IntVar(&s.seeds, "seeds", 1, "`number` of seeds, counted up from --seed; results are means, with their spread")
	s.engines.add(f)
	s.output.add(f)
	s.many.add(f)
}

// check checks the flags and reads the trace.
func (s *simulate) check(c *cobra.Command) error {
	set := c.Flags().Changed
	err := first(
		s.checkSource(c), atLeast("replicas", s.replicas, 1), atLeast("clients", s.clients, 1),
		checkPolicies(s.policies, sim.Policies()),
		atLeast("seeds", s.seeds, 1), atLeast("copies", s.copies, 1), positive("load", s.load),
		positive("rate-scale", s.rateScale),
		oneOf("share", s.share, sim.Shares), s.checkChanges(), s.output.check(),
	)
	switch {
	case err != nil:
		return err
	case set("load") && set("rate-scale"):
		return usagef("--load, --rate-scale: give one of them")
	case s.ongoing < 0 || s.queued < -1 || s.patience < 0:
		return usagef("--max-ongoing, --max-queued, --patience: one is negative")
	case s.ongoing == 0 && (s.queued != 0 || s.patience != 0):
		return usagef("--max-queued, --patience: nothing waits without --max-ongoing")
	case s.jitter < 0 || s.warmUp < 0:
		return usagef("--jitter, --warmup: a time is negative")
	case s.good.TTFT <= 0 || s.good.TPOT <= 0:
		return usagef("--good-ttft, --good-tpot: a time is not positive")
	case s.interval < time.Millisecond:
		return usagef("--broadcast-interval: %v is less than 1ms", s.interval)
	case s.seeds > maxSeeds:
		return usagef("--seeds: %d are more than %d", s.seeds, maxSeeds)
	case s.copies > maxCopies:
		return usagef("--copies: %d are more than %d", s.copies, maxCopies)
	case !(s.unshared >= 0 && s.unshared < 1):
		return usagef("--unshared: %v is not a part in [0, 1)", s.unshared)
	}
	if s.configs, err = s.engines.check(); err != nil {
		return err
	}
	if s.trace == "" {
		if s.duration <= s.warmUp {
			return usagef("--duration: %v is not more than the warm-up of %v", s.duration, s.warmUp)
		}
		return nil
	}
	if s.recorded, err = workload.LoadFile(s.trace, s.format); err != nil {
		return usagef("--trace: %w", err)
	}
	return nil
}

// checkSource sees to it that there is one workload, with the flags that belong to it.
func (s *simulate) checkSource(c *cobra.Command) error {
	set := c.Flags().Changed
	switch {
	case s.trace != "" && s.workload != "":
		return usagef("--trace, --workload: give one of them")
	case s.workload != "":
		for _, name := range []string{"format", "rate-scale", "jitter", "copies"} {
			if set(name) {
				return usagef("--%s: it goes with --trace", name)
			}
		}
		return oneOf("workload", s.workload, workload.Names())
	case s.trace == "":
		return usagef("--trace or --workload is required; the workloads are %s", strings.Join(workload.Names(), ", "))
	}
	for _, name := range []string{"duration", "unshared"} {
		if set(name) {
			return usagef("--%s: it goes with --workload", name)
		}
	}
	return first(required(c, "format"), oneOf("format", s.format, workload.Formats))
}

func (s *simulate) checkChanges() error {
	for _, text := range s.changes {
		c, err := sim.ParseChange(text)
		if err != nil {
			return usagef("--fleet-change: %w", err)
		}
		s.turnover = append(s.turnover, c)
	}
	return nil
}

// traffic is what arrives.
func (s *simulate) traffic() sim.Traffic {
	if s.workload == "" {
		return sim.Traffic{Trace: s.recorded, Copies: s.copies, Jitter: s.jitter}
	}
	return sim.Traffic{Workload: workload.Spec{Name: s.workload, Unshared: s.unshared, Duration: s.duration}}
}

// rate is how fast requests are to arrive, and the words for it.
func (s *simulate) rate(ctx context.Context, c *cobra.Command) (rate float64, words string, err error) {
	unit := "arrivals ÷ %.4g"
	if s.workload != "" {
		unit = "%.4g requests/s"
	}
	if s.workload == "" && !c.Flags().Changed("load") {
		return s.rateScale, fmt.Sprintf(unit, s.rateScale), nil
	}
	search := sim.Search{
		Traffic: s.traffic(), First: 1, Replicas: s.replicas, Engines: s.configs, WarmUp: s.warmUp, Targets: s.good,
		Progress: func(rate float64) { fmt.Fprintf(c.ErrOrStderr(), "capacity: trying "+unit+"\n", rate) },
	}
	if s.workload != "" {
		search.First = float64(s.replicas)
	}
	if dir, err := os.UserCacheDir(); err == nil {
		search.Dir = filepath.Join(dir, "warmpath")
	}
	capacity, err := sim.Capacity(ctx, search)
	if errors.Is(err, enginesim.ErrTooLong) {
		return 0, "", usagef("--kv-tokens: %w", err)
	} else if err != nil {
		return 0, "", err
	}
	rate = capacity * s.load
	return rate, fmt.Sprintf(unit+", %.0f %% of the capacity (round robin, one client, goodput ≥ 0.95)", rate,
		100*s.load), nil
}

func (s *simulate) run(ctx context.Context, c *cobra.Command) (*report.Report, error) {
	rate, words, err := s.rate(ctx, c)
	if err != nil {
		return nil, err
	}
	rep := &report.Report{Title: s.title(), Subject: s.subject()}
	rep.Replicas, rep.Clients = s.replicas, s.clients
	traffic, seeds := s.traffic(), make([][]*drive.Result, len(s.policies))
	for k := range s.seeds {
		seed := s.seed + uint64(k)
		rs, err := traffic.Requests(rate, seed)
		if err != nil {
			return nil, err
		}
		before := slices.IndexFunc(rs, func(q workload.Request) bool { return q.At >= s.warmUp })
		if before < 0 {
			return nil, usagef("--warmup: no request arrives after %v", s.warmUp)
		}
		if k == 0 {
			rep.Facts = s.facts(rs, before, words)
			fmt.Fprintf(c.ErrOrStderr(), "%s\n", rep.Facts[0].Value)
		}
		prompts := sim.NewPrompts(rs)
		for i, name := range s.policies {
			res, err := s.policy(ctx, c, rs, prompts, name, seed)
			if err != nil {
				return nil, err
			}
			if k > 0 {
				res.Samples = nil // the charts show the first seed
			}
			seeds[i] = append(seeds[i], res)
		}
	}
	for _, results := range seeds {
		rep.Results = append(rep.Results, sim.Merge(results))
	}
	rep.Requests = rep.Results[0].Requests
	return rep, nil
}

// policy measures one policy with one seed.
func (s *simulate) policy(ctx context.Context, c *cobra.Command, rs []workload.Request, prompts *sim.Prompts,
	name string, seed uint64) (*drive.Result, error) {
	p := newProgress(c.ErrOrStderr(), name, len(rs))
	start := time.Now()
	res, err := sim.Run(ctx, rs, sim.Config{
		Replicas: s.replicas, Clients: s.clients, Engines: s.configs, Share: sim.Share(s.share), Interval: s.interval,
		Channel: policy.Config{
			Policy: policy.Selection{Name: name}, MaxOngoingRequests: s.ongoing, MaxQueuedRequests: s.queued,
		},
		Patience: s.patience, Affinity: s.affinity, Changes: s.turnover, WarmUp: s.warmUp, Targets: s.good, Seed: seed,
		Prompts: prompts, Progress: p.show,
	})
	if err != nil {
		return nil, err
	}
	p.finish()
	fmt.Fprintf(c.ErrOrStderr(), "%s, seed %d: done in %.1f s, %.1f %% cached, first token after %.0f ms\n",
		name, seed, time.Since(start).Seconds(), 100*res.CachedTokenRatio, res.TTFT.Mean)
	return res, nil
}
