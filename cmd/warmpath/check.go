package main

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// someOf refuses an empty list, names that are not among the choices and names that come twice.
func someOf(flag string, names, choices []string) error {
	if len(names) == 0 {
		return usagef("--%s: none is named; choose among %s", flag, strings.Join(choices, ", "))
	}
	for i, name := range names {
		if err := oneOf(flag, name, choices); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return usagef("--%s: %s is named twice", flag, name)
		}
	}
	return nil
}

// oneOf refuses a value that is not among the choices.
func oneOf(flag, value string, choices []string) error {
	if !slices.Contains(choices, value) {
		return usagef("--%s: %q is unknown; choose one of %s", flag, value, strings.Join(choices, ", "))
	}
	return nil
}

// atLeast refuses numbers below a bound.
func atLeast[N int | float64 | time.Duration](flag string, value, least N) error {
	if !(value >= least) {
		return usagef("--%s: %v is less than %v", flag, value, least)
	}
	return nil
}

// positive refuses what is not a positive number.
func positive[N float64 | time.Duration](flag string, value N) error {
	if !(value > 0) || math.IsInf(float64(value), 0) {
		return usagef("--%s: %v is not a positive number", flag, value)
	}
	return nil
}

// required refuses a call without one of the flags.
func required(c *cobra.Command, names ...string) error {
	for _, name := range names {
		if !c.Flags().Changed(name) {
			_, usage := pflag.UnquoteUsage(c.Flags().Lookup(name))
			return usagef("--%s is required: %s", name, usage)
		}
	}
	return nil
}

// setDefaults sets flags that were not given.
func setDefaults(f *pflag.FlagSet, values map[string]string) error {
	for name, value := range values {
		if !f.Changed(name) {
			if err := f.Set(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// first returns the first error.
func first(errs ...error) error { return cmp.Or(errs...) }
