package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/report"
	"github.com/warmpath/warmpath/internal/lab/workload"
	"github.com/warmpath/warmpath/resolver"
)

type replay struct {
	drive.Options
	output    outputFlags
	trace     string
	format    string
	policies  []string
	limit     int
	jitter    time.Duration
	rateScale float64
	modes     modes
}

func newReplay() *cobra.Command {
	var r replay
	c := &cobra.Command{
		Use:   "replay --trace FILE --format FORMAT --target TARGET | --mode MODES",
		Short: "Replay a trace against running servers, or compare the modes, open loop",
		Long: "replay sends the requests of a trace at their times, whatever the results of those before, once for each\n" +
			"policy. The servers keep their caches in between, so every policy gets a copy of the trace with other tokens.\n\n" +
			"With --mode it compares where picks are made: it starts look-aside servers and, without --target, simulated\n" +
			"engines on loopback, anew for each run; without --trace it generates the requests. --fault breaks the servers.",
		RunE: func(c *cobra.Command, _ []string) error {
			rs, err := r.load(c)
			if err != nil {
				return err
			}
			rep, err := r.run(c.Context(), c, rs)
			if err != nil {
				return err
			}
			return r.output.write(c, rep)
		},
	}
	f := c.Flags()
	f.StringVar(&r.trace, "trace", "", "the `file` with the requests, one JSON object a line")
	f.StringVar(&r.format, "format", "", "the `format` of the trace: "+strings.Join(workload.Formats, ", "))
	f.StringVar(&r.Target, "target", "", "the `servers`: host:port,host:port or a gRPC target")
	f.IntVar(&r.Clients, "clients", 1, "`number` of channels, which share nothing")
	f.StringSliceVar(&r.policies, "policies", []string{policy.Default}, "the `policies` to use, one after the other")
	f.StringVar(&r.Dialect, "dialect", drive.DefaultDialect,
		"what the servers speak: "+strings.Join(drive.Dialects(), ", "))
	f.StringVar(&r.Model, "model", "", "`name` of the model, where the dialect has a field for it")
	f.Float64Var(&r.Speed, "speed", 1, "how much faster than real engines the servers run; times are in theirs")
	f.IntVar(&r.limit, "limit", 0, "send only the first `number` of requests; 0 means all")
	f.DurationVar(&r.jitter, "jitter", 0, "delay every request by up to this `time` at random")
	f.Float64Var(&r.rateScale, "rate-scale", 1, "divide the times of the trace by this")
	f.DurationVar(&r.WarmUp, "warm-up", 0, "do not measure the requests of this first `time`")
	f.DurationVar(&r.Timeout, "timeout", 10*time.Minute, "end calls that take longer than this `time`; 0 means never")
	f.DurationVar(&r.Connect, "connect-timeout", 10*time.Second,
		"give up when no server takes a connection within this `time`")
	f.Uint64Var(&r.Seed, "seed", 1, "seed of the jitter and of the client of each request")
	r.modes.add(f)
	r.output.add(f)
	return c
}

// load checks the flags and reads the trace.
func (r *replay) load(c *cobra.Command) ([]workload.Request, error) {
	needed, formats := []string{"trace", "format", "target"}, workload.Formats
	if len(r.modes.names) > 0 {
		needed = nil
		if r.trace == "" {
			formats = append([]string{""}, formats...)
		}
	}
	err := first(
		required(c, needed...), oneOf("format", r.format, formats),
		oneOf("dialect", r.Dialect, drive.Dialects()), checkPolicies(r.policies, policy.Names()),
		atLeast("clients", r.Clients, 1), atLeast("limit", r.limit, 0), positive("speed", r.Speed),
		positive("rate-scale", r.rateScale), r.output.check(), r.checkTarget(), r.modes.check(r),
	)
	switch {
	case err != nil:
		return nil, err
	case r.jitter < 0 || r.WarmUp < 0 || r.Timeout < 0:
		return nil, usagef("--jitter, --warm-up, --timeout: a time is negative")
	case r.Connect <= 0:
		return nil, usagef("--connect-timeout: %v is not positive", r.Connect)
	}
	rs, err := r.requests(c.Context())
	if err != nil {
		return nil, err
	}
	if r.limit > 0 && r.limit < len(rs) {
		rs = rs[:r.limit]
	}
	workload.ScaleRate(rs, r.rateScale)
	workload.Jitter(rs, r.jitter, r.Seed)
	if last := rs[len(rs)-1].At; r.WarmUp > last {
		return nil, usagef("--warm-up: the last request arrives after %v", last)
	}
	return rs, nil
}

// requests reads the trace, or generates a workload where there is none.
func (r *replay) requests(ctx context.Context) ([]workload.Request, error) {
	if r.trace == "" {
		return r.modes.plan(ctx, r)
	}
	rs, err := workload.LoadFile(r.trace, r.format)
	if err != nil {
		return nil, usagef("--trace: %w", err)
	}
	return rs, nil
}

// checkTarget makes a list of servers a target and refuses what gRPC would refuse.
func (r *replay) checkTarget() error {
	if r.Target == "" && len(r.modes.names) > 0 {
		return nil
	}
	_, err := fleet.ParseList(r.Target)
	switch {
	case err == nil:
		r.Target = resolver.Scheme + ":///" + r.Target
	case r.Target == "" || strings.Contains(r.Target, ",") && !strings.Contains(r.Target, ":///"):
		return usagef("--target: %w", err) // no scheme of gRPC's has commas
	}
	cc, err := client.New(r.Target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return usagef("--target: %w", err)
	}
	return cc.Close()
}

func (r *replay) run(ctx context.Context, c *cobra.Command, rs []workload.Request) (*report.Report, error) {
	rep := &report.Report{
		Title: fmt.Sprintf("warmpath replay: %s with %d clients", r.name(), r.Clients),
		Facts: r.facts(rs),
	}
	n, copies := 0, 0
	seen := map[string]bool{}
	for _, name := range r.policies {
		for _, mode := range r.modes.orNone() {
			res, replicas, err := r.one(ctx, c, workload.Copy(rs, copies), mode, name)
			if err != nil {
				return nil, err
			}
			if copies++; r.Target == "" {
				copies = 0 // the engines are new
			}
			n = replicas
			for id := range res.Loads {
				seen[id] = true
			}
			rep.Results = append(rep.Results, *res)
		}
	}
	if len(rep.Results) == 0 {
		return nil, errors.New("no policy was measured")
	}
	rep.Comparison = drive.Comparison{
		Replicas: max(n, len(seen)), Clients: r.Clients, Requests: rep.Results[0].Requests, Results: rep.Results,
	}
	rep.CheckTimes(r.Speed)
	return rep, nil
}

// one measures one policy in one mode, "" for channels to the target itself.
func (r *replay) one(
	ctx context.Context, c *cobra.Command, rs []workload.Request, mode, name string,
) (*drive.Result, int, error) {
	config, err := policyConfig(name)
	if err != nil {
		return nil, 0, err
	}
	label := r.label(mode, name)
	p := newProgress(c.ErrOrStderr(), label, len(rs))
	o := r.Options
	o.Config, o.Progress = config, p.show
	s := &stage{options: o}
	if mode != "" {
		if s, err = r.modes.set(ctx, c, r, mode, name, o); err != nil {
			return nil, 0, err
		}
		defer s.close()
	}
	happening := r.modes.fault.plan(ctx, s, r.ours(r.WarmUp), r.ours(rs[len(rs)-1].At))
	defer happening.end() // before the stage is taken down
	start := time.Now()
	samples, err := drive.Run(ctx, rs, s.options)
	if err != nil {
		return nil, 0, err
	}
	n := max(len(s.options.Replicas), len(drive.Replicas(r.Target)))
	res := drive.Summarize(label, n, samples, drive.Targets{})
	p.end(&res, time.Since(start))
	if happening != nil {
		if err := happening.measure(&res, r.Speed, r.WarmUp, n); err != nil {
			return nil, 0, err
		}
	}
	return &res, n, nil
}

// ours is a duration of the trace's in our time.
func (r *replay) ours(d time.Duration) time.Duration { return time.Duration(float64(d) / r.Speed) }

// label names a run.
func (r *replay) label(mode, name string) string {
	switch {
	case mode == "":
		return name
	case len(r.policies) == 1:
		return mode
	}
	return mode + ":" + name
}

// where describes where requests go.
func (r *replay) where() string {
	if r.Target == "" {
		return fmt.Sprintf("%d × %s on loopback", r.modes.Replicas, r.modes.Engine.Preset)
	}
	return r.Target
}

// name is what is sent.
func (r *replay) name() string {
	if r.trace == "" {
		return r.modes.Workload
	}
	return filepath.Base(r.trace)
}

func (r *replay) facts(rs []workload.Request) []report.Fact {
	measured := rs[slices.IndexFunc(rs, func(q workload.Request) bool { return q.At >= r.WarmUp }):]
	return []report.Fact{
		{Name: "Trace", Value: fmt.Sprintf("%s: %d requests in %v, %.0f %% of their prompt tokens are of one request only",
			r.name(), len(measured), measured[len(measured)-1].At.Round(time.Second),
			100*workload.Unshared(rs, len(rs)-len(measured)))},
		{Name: "Servers", Value: r.where() + ", " + r.Dialect},
		{Name: "Speed", Value: fmt.Sprintf("%g seconds of the trace in a second, arrivals ÷ %g, jitter %v", r.Speed,
			r.rateScale, r.jitter)},
		{Name: "Times", Value: "as the engines report them, and the time in the channel's queue; where they report " +
			"none, by the clients' clock × speed"},
	}
}
