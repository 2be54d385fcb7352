package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/report"
	"github.com/warmpath/warmpath/internal/lab/sim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// callTimeout ends a call of the demo whose engine does not answer.
const callTimeout = 30 * time.Second

// maxDemoSpeed is where a millisecond of ours is 10 s of engine time: nothing is left to be measured.
const maxDemoSpeed = 10_000

type demo struct {
	sim.Demo
	output   outputFlags
	clients  int
	duration time.Duration
	policies []string
}

func newDemo() *cobra.Command {
	var d demo
	c := &cobra.Command{
		Use:   "demo",
		Short: "Compare the policies on simulated engines, over real sockets",
		Long: "demo starts simulated engines on loopback, sends them a generated workload at a part of their capacity,\n" +
			"once for each policy with fresh engines and channels, and compares. Engines run faster than real ones; all\n" +
			"times are in the engines' time.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := d.check(); err != nil {
				return err
			}
			r, err := d.run(c.Context(), c)
			if err != nil {
				return err
			}
			return d.output.write(c, r)
		},
	}
	f := c.Flags()
	f.IntVar(&d.Replicas, "replicas", 4, "`number` of engines")
	f.IntVar(&d.clients, "clients", 4, "`number` of channels, which share nothing")
	f.DurationVar(&d.duration, "duration", 20*time.Second, "time for all policies together")
	f.StringVar(&d.Workload, "workload", "chat", "the `workload`: "+fmt.Sprint(workload.Names()))
	f.StringSliceVar(&d.policies, "policies",
		[]string{"round_robin", "power_of_two_choices", "consistent_hash", "prefix_cache_affinity"},
		"the `policies` to compare")
	f.Float64Var(&d.Load, "load", 0.7, "part of the engines' capacity to use")
	f.Float64Var(&d.Unshared, "unshared", 0.4,
		"least share of the prompt tokens that no other request has; prompts that share nothing are added up to it")
	f.Float64Var(&d.Speed, "speed", 0, "seconds of engine time in a second; 0 chooses, up to "+fmt.Sprint(sim.MaxSpeed))
	f.Uint64Var(&d.Seed, "seed", 1, "seed of the workload")
	addEngine(f, &d.Engine.Preset, &d.Engine.KVTokens)
	d.output.add(f)
	return c
}

func (d *demo) check() error {
	d.Share = d.duration / time.Duration(max(len(d.policies), 1))
	err := first(
		atLeast("replicas", d.Replicas, 1), atLeast("clients", d.clients, 1), positive("load", d.Load),
		oneOf("workload", d.Workload, workload.Names()), checkPolicies(d.policies, policy.Names()), d.output.check(),
	)
	switch {
	case err != nil:
		return err
	case d.Share <= 0:
		return usagef("--duration: %v is no time for %d policies", d.duration, len(d.policies))
	case !(d.Speed >= 0 && d.Speed <= maxDemoSpeed):
		return usagef("--speed: %v is not between 0 and %d", d.Speed, maxDemoSpeed)
	case !(d.Unshared >= 0 && d.Unshared < 1):
		return usagef("--unshared: %v is not at least 0 and less than 1", d.Unshared)
	}
	return checkEngine(&d.Engine)
}

func (d *demo) run(ctx context.Context, c *cobra.Command) (*report.Report, error) {
	plan, err := d.Plan(ctx)
	if errors.Is(err, enginesim.ErrTooLong) {
		return nil, usagef("--kv-tokens: %w", err)
	} else if err != nil {
		return nil, err
	}
	r := &report.Report{
		Title: fmt.Sprintf("warmpath demo: %s on %d × %s with %d clients", d.Workload, d.Replicas, d.Engine.Preset, d.clients),
		Facts: d.facts(plan),
		Comparison: drive.Comparison{
			Replicas: d.Replicas, Clients: d.clients, Requests: plan.Measured,
		},
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s\n%s\n", r.Title, r.Facts[0].Value)
	for _, name := range d.policies {
		res, err := d.policy(ctx, c, plan, name)
		if err != nil {
			return nil, err
		}
		r.Results = append(r.Results, *res)
	}
	lag := 0.0
	for i := range r.Results {
		lag = max(lag, r.Results[i].Lag.P99)
	}
	r.Facts = append(r.Facts, report.Fact{Name: "Lag", Value: fmt.Sprintf(
		"99 of 100 requests were sent at most %.1f ms late, which is %.0f ms of engine time", lag, lag*plan.Speed)})
	r.CheckTimes(plan.Speed)
	return r, nil
}

// policy measures one policy with engines and channels of its own.
func (d *demo) policy(ctx context.Context, c *cobra.Command, plan *sim.Plan, name string) (*drive.Result, error) {
	config, err := policyConfig(name)
	if err != nil {
		return nil, err
	}
	fleet, err := drive.StartFleet(ctx, d.Replicas, plan.Engine)
	if err != nil {
		return nil, err
	}
	defer fleet.Kill()
	p := newProgress(c.ErrOrStderr(), name, len(plan.Requests))
	start := time.Now()
	samples, err := drive.Run(ctx, plan.Requests, drive.Options{
		Target: fleet.Target(), Clients: d.clients, Config: config, Speed: plan.Speed, WarmUp: plan.WarmUp,
		Seed: d.Seed, Timeout: callTimeout, Progress: p.show,
	})
	if err != nil {
		return nil, err
	}
	res := drive.Summarize(name, d.Replicas, samples, drive.Targets{})
	p.end(&res, time.Since(start))
	return &res, nil
}

func (d *demo) facts(p *sim.Plan) []report.Fact {
	return []report.Fact{
		{Name: "Load", Value: fmt.Sprintf(
			"%d requests in %v of engine time for each policy, %.0f %% of the capacity (round robin, one client, goodput "+
				"≥ 0.95); %.0f %% of their prompt tokens are of one request only",
			p.Measured, (p.Length - p.WarmUp).Round(time.Second), 100*d.Load, 100*p.Unshared)},
		{Name: "Warm-up", Value: fmt.Sprintf("%v of engine time before that, %d requests, not measured",
			p.WarmUp.Round(time.Second), len(p.Requests)-p.Measured)},
		{Name: "Speed", Value: fmt.Sprintf("%.3g seconds of engine time in a second; all times are engine time", p.Speed)},
		{Name: "Times", Value: "as the engines report them, and the time in the channel's queue"},
		{Name: "Seed", Value: fmt.Sprint(d.Seed)},
	}
}

// policyConfig is the config of a channel with this policy and its defaults.
func policyConfig(name string) (string, error) {
	config, err := json.Marshal(map[string]any{"policy": map[string]any{name: struct{}{}}})
	return string(config), err
}
