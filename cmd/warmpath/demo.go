package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/report"
	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/workload"
)

// maxDemoSpeed is where a millisecond of ours is 10 s of engine time: nothing is left to be measured.
const maxDemoSpeed = 10_000

type demo struct {
	live
	plan          sim.Demo
	duration      time.Duration
	disaggregated bool
}

func newDemo() *cobra.Command {
	var d demo
	c := &cobra.Command{
		Use:   "demo",
		Short: "Compare the policies on simulated engines, over real sockets",
		Long: "demo starts simulated engines on loopback, sends them a generated workload at a part of their capacity,\n" +
			"once for each policy, and mode, with fresh engines and channels, and compares. Engines run faster than real\n" +
			"ones; all times are in the engines' time.",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := d.divide(c); err != nil {
				return err
			}
			if err := d.check(); err != nil {
				return err
			}
			r, err := d.run(c)
			if err != nil {
				return err
			}
			return d.output.write(c, r)
		},
	}
	f := c.Flags()
	d.flags(f, 4, []string{"round_robin", "power_of_two_choices", "consistent_hash", "kv_aware"})
	f.IntVar(&d.engines, "replicas", 4, "`number` of engines")
	f.BoolVar(&d.disaggregated, "disaggregated", false, "compare whole engines with prefill and decode apart")
	f.DurationVar(&d.duration, "duration", 20*time.Second, "time for all policies and modes together")
	f.StringVar(&d.plan.Workload, "workload", "chat", "the `workload`: "+fmt.Sprint(workload.Names()))
	f.Float64Var(&d.plan.Load, "load", 0.7, "part of the engines' capacity to use")
	f.Float64Var(&d.plan.Unshared, "unshared", 0.4, "least share of prompt tokens that are of one request only")
	f.Float64Var(&d.plan.Speed, "speed", 0, "seconds of engine time in a second; 0 chooses, up to "+fmt.Sprint(sim.MaxSpeed))
	addEngine(f, &d.engine.Preset, &d.engine.KVTokens)
	return c
}

// divide sets the defaults of a demo of prefill and decode apart. Its engines are slower: the clients' clock measures them,
// and what clients and sockets take counts.
func (d *demo) divide(c *cobra.Command) error {
	f := c.Flags()
	if !d.disaggregated {
		return nil
	}
	if f.Changed("mode") {
		return usagef("--disaggregated: it does not go with --mode")
	}
	err := setDefaults(f, map[string]string{
		"policies": "kv_aware", "workload": "agents", "replicas": "8", "speed": "10",
	})
	if err == nil && d.engines < 2 {
		return usagef("--disaggregated: --replicas is %d, and there must be 2 at least", d.engines)
	}
	return err
}

func (d *demo) check() error {
	runs := len(d.policies) * max(len(d.modes), 1)
	if d.disaggregated {
		runs *= len(dividedModes)
	}
	d.plan.Share = d.duration / time.Duration(max(runs, 1))
	err := first(atLeast("replicas", d.engines, 1), positive("load", d.plan.Load),
		oneOf("workload", d.plan.Workload, workload.Names()), d.live.check())
	switch {
	case err != nil:
		return err
	case d.plan.Share <= 0:
		return usagef("--duration: %v is no time for %d runs", d.duration, runs)
	case !(d.plan.Speed >= 0 && d.plan.Speed <= maxDemoSpeed):
		return usagef("--speed: %v is not between 0 and %d", d.plan.Speed, maxDemoSpeed)
	case !(d.plan.Unshared >= 0 && d.plan.Unshared < 1):
		return usagef("--unshared: %v is not at least 0 and less than 1", d.plan.Unshared)
	}
	return checkEngine(&d.engine)
}

func (d *demo) run(c *cobra.Command) (*report.Report, error) {
	d.plan.Replicas, d.plan.Seed, d.plan.Engine = d.engines, d.Seed, d.engine
	p, err := d.plan.Plan(c.Context())
	if errors.Is(err, enginesim.ErrTooLong) {
		return nil, usagef("--kv-tokens: %w", err)
	} else if err != nil {
		return nil, err
	}
	d.Speed, d.WarmUp, d.Timeout = p.Speed, p.WarmUp, 10*time.Minute
	if d.disaggregated {
		d.modes, d.OwnClock = dividedModes, true
	}
	r := &report.Report{
		Title: fmt.Sprintf("warmpath demo: %s on %d × %s with %d clients", d.plan.Workload, d.engines, d.engine.Preset, d.Clients),
		Facts: []report.Fact{
			{Name: "Load", Value: fmt.Sprintf(
				"%d requests in %v of engine time for each policy, %.0f %% of the capacity (round robin, one client, goodput "+
					"≥ 0.95); %.0f %% of their prompt tokens are of one request only",
				p.Measured, (p.Length - p.WarmUp).Round(time.Second), 100*d.plan.Load, 100*p.Unshared)},
			{Name: "Warm-up", Value: fmt.Sprintf("%v of engine time before that, %d requests, not measured",
				p.WarmUp.Round(time.Second), len(p.Requests)-p.Measured)},
			{Name: "Speed", Value: fmt.Sprintf("%.3g seconds of engine time in a second; all times are engine time", p.Speed)},
			{Name: "Seed", Value: fmt.Sprint(d.Seed)},
		},
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s\n%s\n", r.Title, r.Facts[0].Value)
	return r, d.measure(c, r, p.Requests)
}
