package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/lab/chaos"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/report"
)

// every stands for all scenarios, or all policies.
const every = "all"

type chaosRun struct {
	chaos.Options
	scenario  string
	policies  []string
	clients   []int
	inProcess bool
	json      bool
}

// chaosReport is what --json prints.
type chaosReport struct {
	// Kept: every promise was kept in every run.
	Kept    bool            `json:"kept"`
	Results []*chaos.Result `json:"results"`
}

func newChaos() *cobra.Command {
	var r chaosRun
	c := &cobra.Command{
		Use:   "chaos --scenario NAME",
		Short: "Kill, hang, cut off and restart replicas under load, and count the calls",
		Long: "chaos starts simulated engines on loopback, each behind a proxy that can break connections, sends them\n" +
			"calls at a steady rate, injects faults, and counts the results of the calls. It exits with 1 if a promise\n" +
			"was broken: calls were lost that could have been served, failed after recovery, or left reservations.\n\n" +
			chaosScenarios(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := r.check(c); err != nil {
				return err
			}
			rep, err := r.run(c.Context(), c.ErrOrStderr())
			if err != nil {
				return err
			}
			if r.json {
				err = printJSON(c.OutOrStdout(), rep)
			} else {
				err = rep.print(c.OutOrStdout())
			}
			if err == nil && !rep.Kept {
				err = errors.New("a promise was broken")
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&r.scenario, "scenario", "", "the `name` of what is to happen, or all")
	f.StringSliceVar(&r.policies, "policy", []string{policy.Default}, "the `policies` to try, or all")
	f.IntSliceVar(&r.clients, "clients", []int{1}, "`numbers` of channels, which share nothing; one run each")
	f.IntVar(&r.Replicas, "replicas", 8, "`number` of engines")
	f.IntVar(&r.Most, "most", 80, "`number` of engines at the top of the scenario scale")
	f.Float64Var(&r.Rate, "rate", 200, "calls per second")
	f.IntVar(&r.Sessions, "sessions", 128,
		"`number` of sessions; policies that look at prompts spread one that has more than a replica's share of the calls")
	f.IntVar(&r.PromptTokens, "prompt", 2048, "`tokens` of a session's prompt")
	f.IntVar(&r.OutputTokens, "output", 16, "`tokens` of an answer")
	f.DurationVar(&r.Timeout, "timeout", 5*time.Second, "end calls after this `time`, which hang and partition last")
	f.DurationVar(&r.Late, "late", time.Second, "count calls whose first message takes longer than this `time`")
	f.IntVar(&r.Turns, "turns", 64, "how often soak changes something")
	f.Float64Var(&r.Speed, "speed", 4, "seconds of engine time in a second")
	f.BoolVar(&r.inProcess, "in-process", false, "run all engines here: kill closes their connections, hang silences them")
	f.Uint64Var(&r.Seed, "seed", 1, "seed of the prompts and of the client of each call")
	f.BoolVar(&r.json, "json", false, "print one JSON object on standard output and nothing else there")
	addEngine(f, &r.Preset, &r.KVTokens)
	return c
}

func chaosScenarios() string {
	var b strings.Builder
	for _, s := range chaos.Scenarios {
		fmt.Fprintf(&b, "  %-15s  %s\n", s.Name, s.What)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (r *chaosRun) check(c *cobra.Command) error {
	names := []string{every}
	for _, s := range chaos.Scenarios {
		names = append(names, s.Name)
	}
	if slices.Equal(r.policies, []string{every}) {
		r.policies = policy.Names()
	}
	err := first(
		required(c, "scenario"), oneOf("scenario", r.scenario, names), someOf("policy", r.policies, policy.Names()),
		atLeast("replicas", r.Replicas, 2), atLeast("most", r.Most, r.Replicas), positive("rate", r.Rate),
		positive("speed", r.Speed),
		atLeast("sessions", r.Sessions, r.Replicas), atLeast("prompt", r.PromptTokens, 1),
		atLeast("output", r.OutputTokens, 1),
		atLeast("turns", r.Turns, 1), positive("timeout", r.Timeout), positive("late", r.Late),
	)
	if err != nil {
		return err
	}
	if len(r.clients) == 0 || slices.Min(r.clients) < 1 {
		return usagef("--clients: each number of channels is at least 1")
	}
	engine := enginesim.Config{Preset: r.Preset, KVTokens: r.KVTokens}
	if r.KVTokens == 0 { // as many as the run needs; the engines' own would hold everything
		engine.KVTokens = 1 << 20
	}
	return checkEngine(&engine)
}

func (r *chaosRun) run(ctx context.Context, log io.Writer) (*chaosReport, error) {
	scenarios := slices.DeleteFunc(slices.Clone(chaos.Scenarios), func(s chaos.Scenario) bool {
		return s.Name != r.scenario && (r.scenario != every || s.Apart)
	})
	rep := &chaosReport{Kept: true}
	for _, scenario := range scenarios {
		for _, name := range r.policies {
			for _, clients := range r.clients {
				res, err := r.one(ctx, log, scenario, name, clients)
				if err != nil {
					return nil, err
				}
				rep.Results = append(rep.Results, res)
				rep.Kept = rep.Kept && len(res.Broken) == 0
			}
		}
	}
	return rep, nil
}

func (r *chaosRun) one(ctx context.Context, log io.Writer, scenario chaos.Scenario, name string, clients int) (*chaos.Result, error) {
	o := r.Options
	o.Scenario, o.Policy, o.Clients = scenario.Name, name, clients
	if !r.inProcess && scenario.Processes {
		path, err := os.Executable()
		if err != nil {
			return nil, err
		}
		o.Launch = chaos.Processes(func(s chaos.Spec) *exec.Cmd { return exec.Command(path, engineArgs(s)...) })
	}
	title := fmt.Sprintf("%s, %s, %d clients", scenario.Name, name, clients)
	p := newProgress(log, title, 0)
	o.Log = func(what string) { p.line("%s", what) }
	o.Progress = p.show
	res, err := chaos.Run(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", title, err)
	}
	for _, b := range res.Broken {
		p.line("BROKEN: %s", b)
	}
	if res.HeldBack > 0 {
		p.line("this machine was too busy: %d calls were not sent; lower --rate", res.HeldBack)
	}
	return res, nil
}

// engineArgs are the command line of an engine.
func engineArgs(s chaos.Spec) []string {
	args := []string{
		"engine", "--listen", "127.0.0.1:0", "--kv-tokens", strconv.Itoa(s.KVTokens), "--grace", s.Grace.String(),
		"--speed", strconv.FormatFloat(s.Speed, 'g', -1, 64), "--max-ongoing", strconv.Itoa(s.MaxOngoing),
	}
	if s.Preset != "" {
		args = append(args, "--preset", s.Preset)
	}
	if s.KVEvents {
		args = append(args, "--kv-events", "grpc")
	}
	return args
}

// print writes a table with one line for each run, and what soak measured.
func (r *chaosReport) print(out io.Writer) error {
	runs := report.Table{Columns: strings.Split("scenario,policy,clients,calls,cut,sent twice,timed out,refused,lost,late,"+
		"retried,misrouted,moved per step,load back,cache back,kept", ",")}
	tours := report.Table{Columns: []string{"policy", "clients", "tour", "goroutines", "heap", "reservations under way"}}
	for _, x := range r.Results {
		kept := "yes"
		if len(x.Broken) > 0 {
			kept = "NO"
		}
		row := []string{x.Scenario, x.Policy}
		for _, n := range []int{x.Clients, x.Calls, x.Outcomes[chaos.Cut], x.Outcomes[chaos.SentTwice],
			x.Outcomes[chaos.TimedOut], x.Outcomes[chaos.Refused], x.Lost, x.Late, x.Retried} {
			row = append(row, strconv.Itoa(n))
		}
		runs.Rows = append(runs.Rows, append(row, orDash(float64(x.Misrouted), "%.0f"), orDash(100*x.MeanMoved, "%.1f %%"),
			orDash(x.LoadBack, "%.1f s"), orDash(x.CacheBack, "%.1f s"), kept))
		for i, f := range x.Footprints {
			tours.Rows = append(tours.Rows, []string{x.Policy, strconv.Itoa(x.Clients), strconv.Itoa(i + 1),
				strconv.Itoa(f.Goroutines), fmt.Sprintf("%.1f MiB", float64(f.Heap)/(1<<20)), strconv.Itoa(f.Reservations)})
		}
	}
	text := runs.Text()
	if tours.Rows != nil {
		text += "\n" + tours.Text()
	}
	_, err := io.WriteString(out, text)
	return err
}

// orDash formats a figure; one that is negative does not exist.
func orDash(x float64, format string) string {
	if x < 0 {
		return "–"
	}
	return fmt.Sprintf(format, x)
}
