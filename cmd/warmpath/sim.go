package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/enginesim"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
)

// capacitySeed makes the workload of which the capacity is found, so that all seeds run at the same rate.
const capacitySeed = 1

// maxSeeds bounds --seeds.
const maxSeeds = 1000

type simulate struct {
	engine    engineFlags
	output    outputFlags
	trace     string
	format    string
	workload  string
	duration  time.Duration
	replicas  int
	clients   int
	policies  []string
	share     string
	interval  time.Duration
	affinity  bool
	rateScale float64
	load      float64
	jitter    time.Duration
	warmUp    time.Duration
	seed      uint64
	seeds     int
	recorded  []workload.Request // the trace, as it is in the file
	config    enginesim.Config
}

func newSim() *cobra.Command {
	var s simulate
	c := &cobra.Command{
		Use:   "sim --trace FILE --format FORMAT | --workload NAME",
		Short: "Compare policies on a trace or a workload in virtual time, many clients at once",
		Long: "sim runs the product's own policies, and baselines written from other projects' published rules, over simulated\n" +
			"engines in virtual time. It answers what each policy would do with a trace, for one client or for many that\n" +
			"do not see each other. The same seed gives the same bytes.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.check(c); err != nil {
				return err
			}
			all, rep, err := s.run(c.Context(), c)
			if err != nil {
				return err
			}
			return s.output.write(c, rep, all, more(all))
		},
	}
	f := c.Flags()
	f.StringVar(&s.trace, "trace", "", "the `file` with the requests, one JSON object a line")
	f.StringVar(&s.format, "format", "", "the `format` of the trace: "+strings.Join(workload.Formats, ", "))
	f.StringVar(&s.workload, "workload", "", "generate this `workload` instead: "+strings.Join(workload.Names(), ", "))
	f.DurationVar(&s.duration, "duration", 35*time.Minute, "`time` in which a generated workload arrives, warm-up included")
	f.IntVar(&s.replicas, "replicas", 16, "`number` of engines")
	f.IntVar(&s.clients, "clients", 1, "`number` of clients, each with a Router of its own")
	f.StringSliceVar(&s.policies, "policies", []string{"round_robin", "power_of_two_choices", "least_tokens", policy.Default},
		"the `policies` to compare: "+strings.Join(sim.Policies(), ", "))
	f.StringVar(&s.share, "share", string(sim.ShareNone), "`what` clients know of each other: "+strings.Join(sim.Shares, ", "))
	f.DurationVar(&s.interval, "broadcast-interval", sim.DefaultInterval, "`time` between two reports of a client, and two broadcasts of the server")
	f.BoolVar(&s.affinity, "client-affinity", false, "send all requests of a session to one client, instead of each to a random one")
	f.Float64Var(&s.rateScale, "rate-scale", 1, "divide the times of the trace by this")
	f.Float64Var(&s.load, "load", 0.7, "part of the fleet's capacity to use; found by a search, and remembered")
	f.DurationVar(&s.jitter, "jitter", 3*time.Second, "delay every request of the trace by up to this `time` at random")
	f.DurationVar(&s.warmUp, "warmup", 300*time.Second, "do not measure the requests of this first `time`")
	f.Uint64Var(&s.seed, "seed", 1, "seed of the workload or the jitter, of who gets which request, and of the policies")
	f.IntVar(&s.seeds, "seeds", 1, "`number` of seeds, counted up from --seed; results are means, and a spread is told")
	s.engine.add(f)
	s.output.add(f)
	return c
}

// check checks the flags and reads the trace.
func (s *simulate) check(c *cobra.Command) error {
	set := c.Flags().Changed
	err := first(
		s.checkSource(c), atLeast("replicas", s.replicas, 1), atLeast("clients", s.clients, 1), checkPolicies(s.policies, sim.Policies()),
		atLeast("seeds", s.seeds, 1), positive("load", s.load), positive("rate-scale", s.rateScale),
		s.checkShare(), s.output.check(),
	)
	switch {
	case err != nil:
		return err
	case set("load") && set("rate-scale"):
		return usagef("--load, --rate-scale: give one of them")
	case s.jitter < 0 || s.warmUp < 0:
		return usagef("--jitter, --warmup: a time is negative")
	case s.interval < time.Millisecond:
		return usagef("--broadcast-interval: %v is less than 1ms", s.interval)
	case s.seeds > maxSeeds:
		return usagef("--seeds: %d are more than %d", s.seeds, maxSeeds)
	}
	if s.config, err = s.engine.check(); err != nil {
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
		for _, name := range []string{"format", "rate-scale", "jitter"} {
			if set(name) {
				return usagef("--%s: it goes with --trace", name)
			}
		}
		return oneOf("workload", s.workload, workload.Names())
	case s.trace == "":
		return usagef("--trace or --workload is required; the workloads are %s", strings.Join(workload.Names(), ", "))
	case set("duration"):
		return usagef("--duration: it goes with --workload")
	}
	return first(required(c, "format"), oneOf("format", s.format, workload.Formats))
}

func (s *simulate) checkShare() error {
	if s.share == "broadcast" {
		return usagef("--share: broadcast needs the coarse KV index, which no policy reads yet; choose one of %s", strings.Join(sim.Shares, ", "))
	}
	return oneOf("share", s.share, sim.Shares)
}

// requests is the workload of a seed. Rate is requests per second, or what to divide the trace's times by.
func (s *simulate) requests(seed uint64, rate float64) ([]workload.Request, error) {
	if s.workload != "" {
		return workload.Generate(workload.Spec{Name: s.workload, Rate: rate, Duration: s.duration, Seed: seed})
	}
	rs := slices.Clone(s.recorded)
	workload.ScaleRate(rs, rate)
	workload.Jitter(rs, s.jitter, seed)
	return rs, nil
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
		Requests: func(rate float64) ([]workload.Request, error) { return s.requests(capacitySeed, rate) },
		First:    1, Replicas: s.replicas, Engine: s.config, WarmUp: s.warmUp,
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
	return rate, fmt.Sprintf(unit+", %.0f %% of the capacity (round robin, one client, goodput ≥ 0.95)", rate, 100*s.load), nil
}

func (s *simulate) run(ctx context.Context, c *cobra.Command) (*sim.Comparison, *report.Report, error) {
	rate, words, err := s.rate(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	all := &sim.Comparison{Replicas: s.replicas, Clients: s.clients}
	seeds := make([][]*sim.Result, len(s.policies))
	var facts []report.Fact
	for k := range s.seeds {
		seed := s.seed + uint64(k)
		rs, err := s.requests(seed, rate)
		if err != nil {
			return nil, nil, err
		}
		before := slices.IndexFunc(rs, func(q workload.Request) bool { return q.At >= s.warmUp })
		if before < 0 {
			return nil, nil, usagef("--warmup: no request arrives after %v", s.warmUp)
		}
		if k == 0 {
			facts = s.facts(rs, before, words)
			fmt.Fprintf(c.ErrOrStderr(), "%s\n", facts[0].Value)
		}
		for i, name := range s.policies {
			res, err := s.policy(ctx, c, rs, name, seed)
			if err != nil {
				return nil, nil, err
			}
			if k > 0 {
				res.Samples = nil // the charts show the first seed
			}
			seeds[i] = append(seeds[i], res)
		}
	}
	for i := range s.policies {
		all.Results = append(all.Results, sim.Merge(seeds[i]))
	}
	all.Requests = all.Results[0].Requests
	return all, &report.Report{Comparison: all.Drive(), Title: s.title(), Facts: facts, Who: s.who()}, nil
}

// policy measures one policy with one seed.
func (s *simulate) policy(ctx context.Context, c *cobra.Command, rs []workload.Request, name string, seed uint64) (*sim.Result, error) {
	p := newProgress(c.ErrOrStderr(), name, len(rs))
	start := time.Now()
	res, err := sim.Run(ctx, rs, sim.Config{
		Replicas: s.replicas, Clients: s.clients, Engine: s.config, Share: sim.Share(s.share), Interval: s.interval,
		Channel: policy.Config{Policy: policy.Selection{Name: name}}, Affinity: s.affinity, WarmUp: s.warmUp, Seed: seed,
		Progress: p.tell,
	})
	if err != nil {
		return nil, err
	}
	p.finish()
	fmt.Fprintf(c.ErrOrStderr(), "%s, seed %d: done in %.1f s, %.1f %% cached, first token after %.0f ms\n",
		name, seed, time.Since(start).Seconds(), 100*res.CachedTokenRatio, res.TTFT.Mean)
	return res, nil
}

func (s *simulate) source() string {
	if s.workload != "" {
		return s.workload
	}
	return filepath.Base(s.trace)
}

func (s *simulate) title() string {
	return fmt.Sprintf("warmpath sim: %s on %d × %s with %d clients", s.source(), s.replicas, s.config.Preset, s.clients)
}

// who begins the sentence about the results.
func (s *simulate) who() string {
	switch {
	case s.clients == 1 || sim.Share(s.share) == sim.ShareNone:
		return ""
	case sim.Share(s.share) == sim.ShareCentral:
		return fmt.Sprintf("With one Router for %d clients", s.clients)
	}
	return fmt.Sprintf("With %d clients that share their load every %v", s.clients, s.interval)
}

func (s *simulate) facts(rs []workload.Request, before int, rate string) []report.Fact {
	measured := rs[before:]
	span := measured[len(measured)-1].At - measured[0].At
	shared := map[sim.Share]string{
		sim.ShareNone: "nothing", sim.ShareLoad: fmt.Sprintf("each other's load, every %v", s.interval), sim.ShareCentral: "everything: one Router decides",
	}
	return []report.Fact{
		{Name: "Workload", Value: fmt.Sprintf("%s: %d requests in %v after the warm-up, %s; %.0f %% of their prompt tokens are nobody else's",
			s.source(), len(measured), span.Round(time.Second), rate, 100*workload.UnsharedAfter(rs, before))},
		{Name: "Engines", Value: fmt.Sprintf("%d × %s with %d tokens of KV cache, in virtual time", s.replicas, s.config.Preset, s.config.KVTokens)},
		{Name: "Clients", Value: fmt.Sprintf("%d, which know of each other %s", s.clients, shared[sim.Share(s.share)])},
		{Name: "Seeds", Value: fmt.Sprintf("%d to %d; charts show the first", s.seed, s.seed+uint64(s.seeds)-1)},
		{Name: "Baselines", Value: "policies of other projects are written from their published rules"},
	}
}

// more is the figures that only the simulator has.
func more(all *sim.Comparison) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	spread := all.Results[0].Spread != nil
	fmt.Fprint(w, "policy\toutput tokens/s\tpreemptions\tKV busiest ÷ mean")
	if spread {
		fmt.Fprint(w, "\tspread: cached tokens\tTTFT ms mean\tp99\tms per token mean\tgoodput")
	}
	fmt.Fprintln(w)
	for i := range all.Results {
		r := &all.Results[i]
		fmt.Fprintf(w, "%s\t%.0f\t%d\t%.2f", r.Policy, r.OutputTokensPerS, r.Preemptions, r.KVImbalance)
		if p := r.Spread; spread {
			fmt.Fprintf(w, "\t%.1f %%\t%.1f\t%.1f\t%.2f\t%.1f %%", 100*p.CachedTokenRatio, p.TTFT.Mean, p.TTFT.P99, p.TPOT.Mean, 100*p.Goodput)
		}
		fmt.Fprintln(w)
	}
	w.Flush() //nolint:errcheck // A strings.Builder takes everything.
	return b.String()
}
