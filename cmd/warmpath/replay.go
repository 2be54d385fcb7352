package main

import (
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
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/report"
	"github.com/warmpath/warmpath/lab/workload"
	"github.com/warmpath/warmpath/resolver"
)

type replay struct {
	live
	trace     string
	format    string
	limit     int
	jitter    time.Duration
	rateScale float64
}

func newReplay() *cobra.Command {
	var r replay
	c := &cobra.Command{
		Use:   "replay --trace FILE --format FORMAT --target TARGET",
		Short: "Replay a trace against running servers, open loop",
		Long: "replay sends the requests of a trace at their times, whatever the results of those before, once for each\n" +
			"policy, and mode. The servers keep their caches in between, so every run gets a copy of the trace with other\n" +
			"tokens.",
		RunE: func(c *cobra.Command, _ []string) error {
			rs, err := r.load(c)
			if err != nil {
				return err
			}
			rep := &report.Report{
				Title: fmt.Sprintf("warmpath replay: %s with %d clients", filepath.Base(r.trace), r.Clients), Facts: r.facts(rs),
			}
			if err := r.measure(c, rep, rs); err != nil {
				return err
			}
			return r.output.write(c, rep)
		},
	}
	f := c.Flags()
	r.flags(f, 1, []string{policy.Default})
	f.StringVar(&r.trace, "trace", "", "the `file` with the requests, one JSON object a line")
	f.StringVar(&r.format, "format", "", "the `format` of the trace: "+strings.Join(workload.Formats, ", "))
	f.StringVar(&r.Target, "target", "", "the `servers`: host:port,host:port or a gRPC target")
	f.StringVar(&r.Dialect, "dialect", drive.DefaultDialect, "what they speak: "+strings.Join(drive.Dialects(), ", "))
	f.StringVar(&r.Model.Name, "model", "", "`name` of the model, where the dialect has a field for it")
	f.Uint32Var(&r.Model.Vocabulary, "vocabulary", 0, "`number` of the model's token ids; 0 means that the servers are asked with GetModelInfo")
	f.Float64Var(&r.Speed, "speed", 1, "how much faster than real engines the servers run; times are in theirs")
	f.IntVar(&r.limit, "limit", 0, "send only the first `number` of requests; 0 means all")
	f.DurationVar(&r.jitter, "jitter", 0, "delay every request by up to this `time` at random")
	f.Float64Var(&r.rateScale, "rate-scale", 1, "divide the times of the trace by this")
	f.DurationVar(&r.WarmUp, "warm-up", 0, "do not measure the requests of this first `time`")
	f.DurationVar(&r.Timeout, "timeout", 10*time.Minute, "end calls that take longer than this `time`; 0 means never")
	f.DurationVar(&r.Connect, "connect-timeout", 10*time.Second, "how long to wait for the connections, of which each client needs one")
	return c
}

// load checks the flags and reads the trace.
func (r *replay) load(c *cobra.Command) ([]workload.Request, error) {
	err := first(
		required(c, "trace", "format", "target"), oneOf("format", r.format, workload.Formats),
		oneOf("dialect", r.Dialect, drive.Dialects()), atLeast("limit", r.limit, 0), positive("speed", r.Speed),
		positive("rate-scale", r.rateScale), r.checkTarget(), r.check(), atLeast("jitter", r.jitter, 0),
		atLeast("warm-up", r.WarmUp, 0), atLeast("timeout", r.Timeout, 0), positive("connect-timeout", r.Connect),
	)
	if err != nil {
		return nil, err
	}
	rs, err := workload.LoadFile(r.trace, r.format)
	if err != nil {
		return nil, usagef("--trace: %w", err)
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

// checkTarget makes a list of servers a target and refuses what gRPC would refuse.
func (r *replay) checkTarget() error {
	_, err := fleet.ParseList(r.Target)
	switch {
	case err == nil:
		r.Target = resolver.Scheme + ":///" + r.Target
	case r.Target == "" || strings.Contains(r.Target, ",") && !strings.Contains(r.Target, ":///"):
		return usagef("--target: %w", err) // no scheme of gRPC's has commas
	}
	if len(r.modes) > 0 && len(drive.Replicas(r.Target)) == 0 {
		return usagef("--target: --mode needs a list of servers or a fleet file")
	}
	cc, err := client.New(r.Target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return usagef("--target: %w", err)
	}
	return cc.Close()
}

func (r *replay) facts(rs []workload.Request) []report.Fact {
	measured := rs[slices.IndexFunc(rs, func(q workload.Request) bool { return q.At >= r.WarmUp }):]
	return []report.Fact{
		{Name: "Trace", Value: fmt.Sprintf("%s: %d requests in %v, %.0f %% of their prompt tokens are of one request only",
			filepath.Base(r.trace), len(measured), measured[len(measured)-1].At.Round(time.Second),
			100*workload.Unshared(rs, len(rs)-len(measured)))},
		{Name: "Servers", Value: r.Target + ", " + r.Dialect},
		{Name: "Speed", Value: fmt.Sprintf("%g seconds of the trace in a second, arrivals ÷ %g, jitter %v", r.Speed,
			r.rateScale, r.jitter)},
	}
}
