package main

import (
	"cmp"
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

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/report"
	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/workload"
)

// rate is how fast requests are to arrive, and the words for it.
func (s *simulate) rate(ctx context.Context, c *cobra.Command) (rate float64, words string, err error) {
	unit := "arrivals ÷ %.4g"
	if s.traffic.Workload.Name != "" {
		unit = "%.4g requests/s"
	}
	if s.AtOnce > 0 {
		rate = cmp.Or(s.perSecond, s.rateScale)
		return rate, fmt.Sprintf("%d at once, in the order of "+unit, s.AtOnce, rate), nil
	}
	if s.perSecond > 0 {
		return s.perSecond, fmt.Sprintf(unit, s.perSecond), nil
	}
	if s.traffic.Workload.Name == "" && !c.Flags().Changed("load") {
		return s.rateScale, fmt.Sprintf(unit, s.rateScale), nil
	}
	search := sim.Search{
		Traffic: s.traffic, First: 1, Replicas: s.Replicas, Engines: s.Engines, WarmUp: s.WarmUp, Targets: s.Targets,
		Progress: func(rate float64) { fmt.Fprintf(c.ErrOrStderr(), "capacity: trying "+unit+"\n", rate) },
	}
	if s.traffic.Workload.Name != "" {
		search.First = float64(s.Replicas)
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
	rep.Replicas, rep.Clients = s.Replicas, s.Clients
	runs := s.runs()
	seeds := make([][]*drive.Result, len(runs))
	for k := range s.seeds {
		seed := s.Seed + uint64(k)
		rs, err := s.traffic.Requests(rate, seed)
		if err != nil {
			return nil, err
		}
		before := slices.IndexFunc(rs, func(q workload.Request) bool { return q.At >= s.WarmUp })
		if before < 0 {
			return nil, usagef("--warmup: no request arrives after %v", s.WarmUp)
		}
		if k == 0 {
			rep.Facts = s.facts(c, rs, before, words)
			fmt.Fprintf(c.ErrOrStderr(), "%s\n", rep.Facts[0].Value)
		}
		prompts := sim.NewPrompts(rs)
		for i, one := range runs {
			res, err := s.policy(ctx, c, prompts, len(rs), one, seed)
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

// a policyRun is one row: a policy, and what decides which requests are split.
type policyRun struct{ policy, split, name string }

// runs are the rows: every policy with every rule.
func (s *simulate) runs() (all []policyRun) {
	for _, policy := range s.policies {
		for _, split := range s.splits {
			name := policy
			if len(s.roles) > 0 {
				name += " " + split
			}
			all = append(all, policyRun{policy, split, name})
		}
	}
	return all
}

// policy measures one policy with one seed.
func (s *simulate) policy(ctx context.Context, c *cobra.Command, prompts *sim.Prompts, n int, one policyRun,
	seed uint64) (*drive.Result, error) {
	name := one.name
	p := newProgress(c.ErrOrStderr(), name, n)
	start := time.Now()
	config := s.Config
	config.Channel.Policy.Name, config.Split, config.Seed, config.Progress = one.policy, one.split, seed, p.show
	res, err := sim.Run(ctx, prompts, config)
	if err != nil {
		return nil, err
	}
	res.Policy = name
	fmt.Fprintf(c.ErrOrStderr(), "%s, seed %d: done in %.1f s, %.1f %% cached, first token after %.0f ms\n",
		name, seed, time.Since(start).Seconds(), 100*res.CachedTokenRatio, res.TTFT.Mean)
	return res, nil
}

func (s *simulate) source() string {
	if s.traffic.Workload.Name != "" {
		return s.traffic.Workload.Name
	}
	return filepath.Base(s.trace)
}

func (s *simulate) title() string {
	return fmt.Sprintf("warmpath sim: %s on %d × %s with %d clients", s.source(), s.Replicas,
		strings.Join(s.engines.presets, " and "), s.Clients)
}

// subject begins the sentence about the results.
func (s *simulate) subject() string {
	switch {
	case s.Share == sim.ShareNone, s.Clients == 1 && s.Share != sim.ShareBroadcast:
		return ""
	case s.Share == sim.SharePoll, s.Share == sim.SharePollCount:
		return fmt.Sprintf("With %d clients that ask replicas before each request", s.Clients)
	}
	what := "load"
	if s.Share == sim.ShareBroadcast {
		what = "load and a coarse index of the caches"
	}
	return fmt.Sprintf("With %d clients that share %s every %v", s.Clients, what, s.Interval)
}

// facts are how it was measured: what arrives, and every flag.
func (s *simulate) facts(c *cobra.Command, rs []workload.Request, before int, rate string) []report.Fact {
	measured := rs[before:]
	span := measured[len(measured)-1].At - measured[0].At
	facts := []report.Fact{{Name: "Workload", Value: fmt.Sprintf("%s: %d requests in %v after the warm-up, %s; %.0f %% of "+
		"their prompt tokens are of one request only",
		s.source(), len(measured), span.Round(time.Second), rate, 100*workload.Unshared(rs, before))}}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		value, others := f.Value.String(), goesWith[f.Name]
		if value != "" && (others == nil || others[0] != "matrix") {
			facts = append(facts, report.Fact{Name: "--" + f.Name, Value: value})
		}
	})
	return append(facts,
		report.Fact{Name: "Seeds", Value: "figures are means, counts sums, spreads the largest less the smallest; curves are of " +
			"the first"},
		report.Fact{Name: "Baselines", Value: "policies of other projects are written from their published rules"})
}
