package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/sim/matrix"
	"github.com/warmpath/warmpath/lab/workload"
)

// builtinMatrix is the name of the project's own cells.
const builtinMatrix = "builtin"

// judged are the policies whose losses the summary lists.
var judged = []string{"kv_aware"}

// matrixFlags are those of many cells.
type matrixFlags struct {
	matrix  string
	only    []string
	results string
	summary bool
	workers int
}

func (m *matrixFlags) add(f *pflag.FlagSet) {
	f.StringVar(&m.matrix, "matrix", "", "run many cells instead of one: `FILE` with cells, or "+builtinMatrix)
	f.StringVar(&m.results, "results", "", "the `directory` with results of --matrix, which are not run again")
	f.StringSliceVar(&m.only, "cells", nil, "only these `cells` of the matrix, by name")
	f.BoolVar(&m.summary, "summary", false, "print what is there of the matrix as markdown; run nothing")
	f.IntVar(&m.workers, "workers", runtime.NumCPU(), "`number` of runs at once")
}

// goesWith are the flags that need others: one of these is given too.
var goesWith = map[string][]string{
	"results": {"matrix"}, "cells": {"matrix"}, "summary": {"matrix"}, "workers": {"matrix"},
	"format": {"trace"}, "jitter": {"trace"}, "rate-scale": {"trace"}, "copies": {"trace"}, "tool-gaps": {"trace"},
	"duration": {"workload", "matrix"}, "unshared": {"workload"}, "rate": {"workload"},
	"split": {"roles"},
}

// matrixToo are the flags that go with --matrix.
var matrixToo = []string{"matrix", "results", "cells", "summary", "workers",
	"trace", "format", "jitter", "policies", "seeds", "duration", "warmup"}

// checkTogether refuses flags that do not go together.
func checkTogether(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		others := goesWith[f.Name]
		switch {
		case err != nil:
		case others != nil && !slices.ContainsFunc(others, flags.Changed):
			err = usagef("--%s: it goes with --%s", f.Name, strings.Join(others, " or --"))
		case flags.Changed("matrix") && !slices.Contains(matrixToo, f.Name):
			err = usagef("--%s: it does not go with --matrix, whose cells say that", f.Name)
		}
	})
	return err
}

// cells reads them.
func (m *matrixFlags) cells() ([]matrix.Cell, error) {
	cells := matrix.Builtin()
	if m.matrix != builtinMatrix {
		f, err := os.Open(m.matrix)
		if err != nil {
			return nil, usagef("--matrix: %w", err)
		}
		defer f.Close()
		if cells, err = matrix.Read(f); err != nil {
			return nil, usagef("--matrix: %s: %w", m.matrix, err)
		}
	}
	for _, name := range m.only {
		if !slices.ContainsFunc(cells, func(c matrix.Cell) bool { return c.Name == name }) {
			return nil, usagef("--cells: %q is not in the matrix", name)
		}
	}
	if len(m.only) > 0 {
		cells = slices.DeleteFunc(cells, func(c matrix.Cell) bool { return !slices.Contains(m.only, c.Name) })
	}
	return cells, nil
}

// runMatrix is sim with --matrix.
func (s *simulate) runMatrix(ctx context.Context, c *cobra.Command) error {
	err := first(
		setDefaults(c.Flags(), map[string]string{ // shorter runs than of a single cell, and more of them
			"policies": strings.Join(sim.Policies(), ","), "seeds": "5", "duration": "11m", "warmup": "3m",
		}),
		required(c, "results"), someOf("policies", s.policies, sim.Policies()), atLeast("seeds", s.seeds, 1),
		atLeast("workers", s.many.workers, 1))
	switch {
	case err != nil:
		return err
	case s.seeds > maxSeeds:
		return usagef("--seeds: %d are more than %d", s.seeds, maxSeeds)
	case s.traffic.Jitter < 0 || s.WarmUp < 0 || s.traffic.Workload.Duration <= s.WarmUp:
		return usagef("--duration: %v is not more than the warm-up of %v, or a time is negative", s.traffic.Workload.Duration, s.WarmUp)
	}
	cells, err := s.many.cells()
	if err != nil {
		return err
	}
	if s.many.summary {
		found := matrix.Load(s.many.results, cells, s.policies, s.seeds)
		_, err := fmt.Fprint(c.OutOrStdout(), found.Markdown(s.policies, judged))
		return err
	}
	plan, err := s.plan(c, cells)
	if err != nil {
		return err
	}
	return matrix.Run(ctx, plan)
}

// plan is what to run.
func (s *simulate) plan(c *cobra.Command, cells []matrix.Cell) (matrix.Plan, error) {
	code, err := matrix.Program()
	if err != nil {
		return matrix.Plan{}, err
	}
	p := matrix.Plan{
		Cells: cells, Policies: s.policies, Seeds: s.seeds, Duration: s.traffic.Workload.Duration, WarmUp: s.WarmUp, Jitter: s.traffic.Jitter,
		Dir: s.many.results, Code: code, Workers: s.many.workers,
		Log: func(line string) { fmt.Fprintln(c.ErrOrStderr(), line) },
	}
	if !slices.ContainsFunc(cells, func(c matrix.Cell) bool { return c.Workload == matrix.Trace }) {
		return p, nil
	}
	if err := first(required(c, "trace", "format"), oneOf("format", s.format, workload.Formats)); err != nil {
		return p, err
	}
	if p.Trace, err = workload.LoadFile(s.trace, s.format); err != nil {
		return p, usagef("--trace: %w", err)
	}
	return p, nil
}
