package main

import (
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/sim/baseline"
	"github.com/warmpath/warmpath/lab/workload"
)

// Bounds of --seeds and --copies.
const maxSeeds, maxCopies = 1000, 1000

type simulate struct {
	sim.Config
	traffic   sim.Traffic
	engines   fleetFlags
	output    outputFlags
	many      matrixFlags
	trace     string
	format    string
	policies  []string
	rateScale float64
	perSecond float64
	load      float64
	seeds     int
	roles     map[string]int
	splits    []string
}

func newSim() *cobra.Command {
	var s simulate
	c := &cobra.Command{
		Use:   "sim --trace FILE --format FORMAT | --workload NAME | --matrix FILE --results DIR",
		Short: "Compare policies on a trace or a workload in virtual time, many clients at once",
		Long: "sim runs the product's own policies, and baselines written from other projects' published rules, over\n" +
			"simulated engines in virtual time: the effect of each policy on a trace, for one client or for many that do\n" +
			"not see each other. The same seed gives the same bytes.\n\n" +
			"With --matrix it runs many such cells, goes on where it was interrupted, and prints means over all of them.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkTogether(c.Flags()); err != nil {
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
	w := &s.traffic.Workload
	f.StringVar(&w.Name, "workload", "", "generate this `workload` instead: "+strings.Join(workload.Names(), ", "))
	f.DurationVar(&w.Duration, "duration", 35*time.Minute, "`time` in which it arrives, warm-up included")
	f.Float64Var(&w.Unshared, "unshared", 0, "least `part` of its prompt tokens that are of one request only")
	f.IntVar(&s.traffic.Copies, "copies", 1, "overlay this `number` of copies of the trace, which share its block 0 only")
	f.IntVar(&s.Replicas, "replicas", 16, "`number` of engines")
	f.StringToIntVar(&s.roles, "roles", nil, "`numbers` of engines with a role, as in prefill=6,decode=10")
	f.StringSliceVar(&s.splits, "split", []string{baseline.SplitCost},
		"with --roles: the `rules` that decide which requests two engines share: "+strings.Join(baseline.Splits, ", "))
	f.IntVar(&s.Clients, "clients", 1, "`number` of clients, each with a Router of its own")
	f.StringSliceVar(&s.policies, "policies",
		[]string{"round_robin", "power_of_two_choices", "least_tokens", policy.Default},
		"the `policies` to compare: "+strings.Join(sim.Policies(), ", "))
	f.IntVar(&s.Channel.MaxOngoingRequests, "max-ongoing", 0, "`number` of a client's requests on an engine; 0 = all")
	f.Float64Var((*float64)(&s.Channel.MaxQueuedRequests), "max-queued", 0,
		"`number` of requests that wait in a client's queue; one more is refused. 0 = 1,000, -1 = no bound")
	f.DurationVar(&s.Patience, "patience", 0, "how long after its arrival a request that waits gives up; 0 = never")
	f.StringVar((*string)(&s.Share), "share", string(sim.ShareNone),
		"`what` clients know of each other: "+strings.Join(sim.Shares, ", "))
	f.BoolVar(&s.NoEvents, "no-events", false, "engines report no KV events to kv_aware")
	f.IntVar(&s.Servers, "servers", 1, "`number` of look-aside servers that share load and caches, each with its part of the clients")
	f.DurationVar(&s.Interval, "broadcast-interval", sim.DefaultInterval, "`time` between two reports, and two broadcasts")
	f.BoolVar(&s.Affinity, "client-affinity", false, "send all requests of a session to one client, not to random ones")
	f.IntVar(&s.AtOnce, "at-once", 0, "`number` of requests under way at any moment, in the order of their times; 0 = at their times")
	f.Float64Var(&s.rateScale, "rate-scale", 1, "divide the times of the trace by this")
	f.Float64Var(&s.perSecond, "rate", 0, "`requests` per second of a generated workload; 0 = by --load")
	f.Float64Var(&s.load, "load", 0.7, "part of the fleet's capacity to use; found by a search, and remembered")
	f.DurationVar(&s.traffic.Jitter, "jitter", 3*time.Second, "delay every request of the trace by up to this `time` at random")
	f.BoolVar(&s.traffic.ToolGaps, "tool-gaps", false,
		"sessions of the trace start at random, with the gaps of agents' tools: 86.5 % up to 1 s, 95.1 % up to 10 s")
	f.DurationVar(&s.WarmUp, "warmup", 300*time.Second, "do not measure the requests of this first `time`")
	f.DurationVar(&s.Targets.TTFT, "good-ttft", drive.GoodTTFT, "longest `time` to the first token of a good request")
	f.DurationVar(&s.Targets.TPOT, "good-tpot", drive.GoodTPOT, "longest mean `time` of its further tokens")
	f.Uint64Var(&s.Seed, "seed", 1, "seed of workload or jitter, of the client of each request, and of the policies")
	f.IntVar(&s.seeds, "seeds", 1, "`number` of seeds, counted up from --seed; results are means, with their spread")
	s.engines.add(f)
	s.output.add(f)
	s.many.add(f)
}

// check checks the flags and reads the trace.
func (s *simulate) check(c *cobra.Command) error {
	set := c.Flags().Changed
	err := first(
		s.checkSource(c), atLeast("replicas", s.Replicas, 1), atLeast("clients", s.Clients, 1),
		atLeast("at-once", s.AtOnce, 0),
		someOf("policies", s.policies, sim.Policies()),
		atLeast("seeds", s.seeds, 1), atLeast("copies", s.traffic.Copies, 1), positive("load", s.load),
		positive("rate-scale", s.rateScale), atLeast("rate", s.perSecond, 0), atLeast("jitter", s.traffic.Jitter, 0),
		atLeast("warmup", s.WarmUp, 0), atLeast("max-ongoing", s.Channel.MaxOngoingRequests, 0),
		atLeast("max-queued", float64(s.Channel.MaxQueuedRequests), -1),
		positive("good-ttft", s.Targets.TTFT), positive("good-tpot", s.Targets.TPOT),
		atLeast("broadcast-interval", s.Interval, time.Millisecond),
		oneOf("share", string(s.Share), sim.Shares), s.output.check(),
	)
	switch {
	case err != nil:
		return err
	case set("load") && s.AtOnce > 0:
		return usagef("--load, --at-once: give one of them")
	case set("load") && (set("rate-scale") || set("rate")):
		return usagef("--load, --rate-scale, --rate: give one of them")
	case math.IsInf(s.perSecond, 0):
		return usagef("--rate: %v is no rate", s.perSecond)
	case s.seeds > maxSeeds:
		return usagef("--seeds: %d are more than %d", s.seeds, maxSeeds)
	case s.traffic.Copies > maxCopies:
		return usagef("--copies: %d are more than %d", s.traffic.Copies, maxCopies)
	case !(s.traffic.Workload.Unshared >= 0 && s.traffic.Workload.Unshared < 1):
		return usagef("--unshared: %v is not a part in [0, 1)", s.traffic.Workload.Unshared)
	}
	if s.Engines, err = s.engines.check(); err != nil {
		return err
	}
	if err := s.checkConfigs(); err != nil {
		return err
	}
	if s.trace == "" {
		if s.traffic.Workload.Duration <= s.WarmUp {
			return usagef("--duration: %v is not more than the warm-up of %v", s.traffic.Workload.Duration, s.WarmUp)
		}
		return nil
	}
	s.traffic.Workload.Duration = 0 // a trace arrives as a whole
	if s.traffic.Trace, err = workload.LoadFile(s.trace, s.format); err != nil {
		return usagef("--trace: %w", err)
	}
	return nil
}

// checkConfigs checks the roles, and what is run with each policy.
func (s *simulate) checkConfigs() error {
	for role := range s.roles {
		if err := oneOf("roles", role, []string{policy.RolePrefill, policy.RoleDecode}); err != nil {
			return err
		}
	}
	s.Prefill, s.Decode = s.roles[policy.RolePrefill], s.roles[policy.RoleDecode]
	for _, name := range s.policies {
		config := s.Config
		config.Channel.Policy.Name = name
		if err := config.Check(); err != nil {
			return usageError{err}
		}
	}
	return someOf("split", s.splits, baseline.Splits)
}

// checkSource sees to it that there is one workload.
func (s *simulate) checkSource(c *cobra.Command) error {
	switch {
	case s.trace != "" && s.traffic.Workload.Name != "":
		return usagef("--trace, --workload: give one of them")
	case s.traffic.Workload.Name != "":
		return oneOf("workload", s.traffic.Workload.Name, workload.Names())
	case s.trace == "":
		return usagef("--trace or --workload is required; the workloads are %s", strings.Join(workload.Names(), ", "))
	}
	return first(required(c, "format"), oneOf("format", s.format, workload.Formats))
}

// fleetFlags are the simulator's engines, which may differ.
type fleetFlags struct {
	presets  []string
	kvTokens []int
}

func (e *fleetFlags) add(f *pflag.FlagSet) {
	f.StringSliceVar(&e.presets, "preset", []string{enginesim.Presets[0].Name}, "the `engines`, in turn: "+presets())
	f.IntSliceVar(&e.kvTokens, "kv-tokens", nil, "`tokens` of KV cache, for all or each preset; 0 = the preset's")
}

// check returns the engines with their defaults filled in.
func (e *fleetFlags) check() ([]enginesim.Config, error) {
	switch n := len(e.presets); {
	case n == 0:
		return nil, usagef("--preset: none is named; choose among %s", presets())
	case len(e.kvTokens) > 1 && len(e.kvTokens) != n:
		return nil, usagef("--kv-tokens: %d sizes are neither one nor as many as presets, %d", len(e.kvTokens), n)
	}
	var all []enginesim.Config
	for i, name := range e.presets {
		one := enginesim.Config{Preset: name}
		if k := len(e.kvTokens); k > 0 {
			one.KVTokens = e.kvTokens[i%k]
		}
		if err := checkEngine(&one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}
