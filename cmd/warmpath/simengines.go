package main

import (
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

// fleetFlags are the simulator's engines, which may differ.
type fleetFlags struct {
	presets  []string
	kvTokens []int
}

func (e *fleetFlags) add(f *pflag.FlagSet) {
	f.StringSliceVar(&e.presets, "preset", []string{enginesim.Presets[0].Name},
		"the `engines` to simulate, which take turns if several are named: "+presets())
	f.IntSliceVar(&e.kvTokens, "kv-tokens", nil,
		"size of the KV cache in `tokens`, one for all or one for each preset; 0 means the preset's")
}

// check returns the engines with their defaults filled in.
func (e *fleetFlags) check() ([]enginesim.Config, error) {
	switch n := len(e.presets); {
	case n == 0:
		return nil, usagef("--preset: none is named; choose among %s", presets())
	case len(e.kvTokens) > 1 && len(e.kvTokens) != n:
		return nil, usagef("--kv-tokens: %d sizes are neither one nor as many as presets, %d", len(e.kvTokens), n)
	}
	var all []enginesim.Config
	for i, name := range e.presets {
		one := engineFlags{enginesim.Config{Preset: name}}
		if k := len(e.kvTokens); k > 0 {
			one.KVTokens = e.kvTokens[i%k]
		}
		c, err := one.check()
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
