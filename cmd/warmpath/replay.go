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

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/drive"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/resolver"
)

type replay struct {
	output    outputFlags
	trace     string
	format    string
	target    string
	clients   int
	policies  []string
	dialect   string
	model     string
	speed     float64
	limit     int
	jitter    time.Duration
	rateScale float64
	warmUp    time.Duration
	timeout   time.Duration
	connect   time.Duration
	seed      uint64
}

func newReplay() *cobra.Command {
	var r replay
	c := &cobra.Command{
		Use:   "replay --trace FILE --format FORMAT --target TARGET",
		Short: "Replay a trace against running servers, open loop",
		Long: "replay sends the requests of a trace at their times, whatever became of those before, once for each policy.\n" +
			"The servers keep their caches in between, so every policy gets a copy of the trace with other tokens.",
		RunE: func(c *cobra.Command, _ []string) error {
			rs, err := r.load(c)
			if err != nil {
				return err
			}
			rep, err := r.run(c.Context(), c, rs)
			if err != nil {
				return err
			}
			return r.output.write(c, rep, rep.Comparison, "")
		},
	}
	f := c.Flags()
	f.StringVar(&r.trace, "trace", "", "the `file` with the requests, one JSON object a line")
	f.StringVar(&r.format, "format", "", "the `format` of the trace: "+strings.Join(workload.Formats, ", "))
	f.StringVar(&r.target, "target", "", "the `servers`: host:port,host:port or a gRPC target")
	f.IntVar(&r.clients, "clients", 1, "`number` of channels, which share nothing")
	f.StringSliceVar(&r.policies, "policies", []string{policy.Default}, "the `policies` to use, one after the other")
	f.StringVar(&r.dialect, "dialect", drive.DefaultDialect, "what the servers speak: "+strings.Join(drive.Dialects(), ", "))
	f.StringVar(&r.model, "model", "", "`name` of the model, where the dialect has a field for it")
	f.Float64Var(&r.speed, "speed", 1, "how much faster than real engines the servers run; times are told in theirs")
	f.IntVar(&r.limit, "limit", 0, "send only the first `number` of requests; 0 means all")
	f.DurationVar(&r.jitter, "jitter", 0, "delay every request by up to this `time` at random")
	f.Float64Var(&r.rateScale, "rate-scale", 1, "divide the times of the trace by this")
	f.DurationVar(&r.warmUp, "warm-up", 0, "do not measure the requests of this first `time`")
	f.DurationVar(&r.timeout, "timeout", 10*time.Minute, "end calls that take longer than this `time`; 0 means never")
	f.DurationVar(&r.connect, "connect-timeout", 10*time.Second, "give up when no server takes a connection within this `time`")
	f.Uint64Var(&r.seed, "seed", 1, "seed of the jitter and of the client of each request")
	r.output.add(f)
	return c
}

// load checks the flags and reads the trace.
func (r *replay) load(c *cobra.Command) ([]workload.Request, error) {
	err := first(
		required(c, "trace", "format", "target"), oneOf("format", r.format, workload.Formats),
		oneOf("dialect", r.dialect, drive.Dialects()), checkPolicies(r.policies, policy.Names()),
		atLeast("clients", r.clients, 1), atLeast("limit", r.limit, 0), positive("speed", r.speed), positive("rate-scale", r.rateScale), r.output.check(), r.checkTarget(),
	)
	switch {
	case err != nil:
		return nil, err
	case r.jitter < 0 || r.warmUp < 0 || r.timeout < 0:
		return nil, usagef("--jitter, --warm-up, --timeout: a time is negative")
	case r.connect <= 0:
		return nil, usagef("--connect-timeout: %v is not positive", r.connect)
	}
	rs, err := workload.LoadFile(r.trace, r.format)
	if err != nil {
		return nil, usagef("--trace: %w", err)
	}
	if r.limit > 0 && r.limit < len(rs) {
		rs = rs[:r.limit]
	}
	workload.ScaleRate(rs, r.rateScale)
	workload.Jitter(rs, r.jitter, r.seed)
	if last := rs[len(rs)-1].At; r.warmUp > last {
		return nil, usagef("--warm-up: the last request arrives after %v", last)
	}
	return rs, nil
}

// checkTarget makes a list of servers a target and refuses what gRPC would refuse.
func (r *replay) checkTarget() error {
	_, err := fleet.ParseList(r.target)
	switch {
	case err == nil:
		r.target = resolver.Scheme + ":///" + r.target
	case r.target == "" || strings.Contains(r.target, ",") && !strings.Contains(r.target, ":///"):
		return usagef("--target: %w", err) // no scheme of gRPC's has commas
	}
	cc, err := client.New(r.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return usagef("--target: %w", err)
	}
	return cc.Close()
}

func (r *replay) run(ctx context.Context, c *cobra.Command, rs []workload.Request) (*report.Report, error) {
	rep := &report.Report{
		Title: fmt.Sprintf("warmpath replay: %s with %d clients", filepath.Base(r.trace), r.clients),
		Facts: r.facts(rs),
	}
	n := len(drive.Replicas(r.target))
	seen := map[string]bool{}
	for k, name := range r.policies {
		config, err := policyConfig(name)
		if err != nil {
			return nil, err
		}
		p := newProgress(c.ErrOrStderr(), name, len(rs))
		start := time.Now()
		samples, err := drive.Run(ctx, workload.Copy(rs, k), drive.Options{
			Target: r.target, Clients: r.clients, Config: config, Dialect: r.dialect, Model: r.model, Speed: r.speed,
			WarmUp: r.warmUp, Timeout: r.timeout, Connect: r.connect, Seed: r.seed, Progress: p.tell,
		})
		if err != nil {
			return nil, err
		}
		res := drive.Summarize(name, n, samples)
		for id := range res.Loads {
			seen[id] = true
		}
		p.end(&res, time.Since(start))
		rep.Results = append(rep.Results, res)
	}
	if len(rep.Results) == 0 {
		return nil, errors.New("no policy was measured")
	}
	rep.Comparison = drive.Comparison{
		Replicas: max(n, len(seen)), Clients: r.clients, Requests: rep.Results[0].Requests, Results: rep.Results,
	}
	return rep, nil
}

func (r *replay) facts(rs []workload.Request) []report.Fact {
	measured := rs[slices.IndexFunc(rs, func(q workload.Request) bool { return q.At >= r.warmUp }):]
	return []report.Fact{
		{Name: "Trace", Value: fmt.Sprintf("%s: %d requests in %v, %.0f %% of their prompt tokens are nobody else's",
			r.trace, len(measured), measured[len(measured)-1].At.Round(time.Second), 100*workload.UnsharedAfter(rs, len(rs)-len(measured)))},
		{Name: "Servers", Value: r.target + ", " + r.dialect},
		{Name: "Speed", Value: fmt.Sprintf("%g seconds of the trace in a second, arrivals ÷ %g, jitter %v", r.speed, r.rateScale, r.jitter)},
		{Name: "Times", Value: "as the engines report them, and the time in the channel's queue; where they report none, by the clients' clock × speed"},
	}
}
