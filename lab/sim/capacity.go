package sim

import (
	"context"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// capacityVersion is raised when engines or arrivals change so that remembered capacities no longer hold.
const capacityVersion = 3

// capacitySeed makes the workload of which the capacity is found, so that all seeds run at the same rate.
const capacitySeed = 1

// Search asks for the capacity of a fleet: the highest rate at which round robin with one client keeps a goodput
// of at least 0.95 among those that an idle engine serves in good time.
type Search struct {
	// Traffic is what arrives. First is a rate to begin with.
	Traffic Traffic
	First   float64
	// Replicas, Engines, WarmUp and Targets are as in a Config.
	Replicas int
	Engines  []enginesim.Config
	WarmUp   time.Duration
	Targets  drive.Targets
	// Dir is where capacities are remembered; empty means nowhere.
	Dir string
	// Progress is called with every rate that is tried; nil = none.
	Progress func(rate float64)
}

// remembered is the content of a capacity's file.
type remembered struct{ Rate float64 }

// Capacity finds it by bisection to 3 %, or remembers it.
func Capacity(ctx context.Context, s Search) (float64, error) {
	c, err := Config{
		Replicas: s.Replicas, Clients: 1, Engines: s.Engines, WarmUp: s.WarmUp, Targets: s.Targets, Seed: 1,
		Channel: policy.Config{Policy: policy.Selection{Name: roundrobin.Name}},
	}.resolve()
	if err != nil {
		return 0, err
	}
	file := ""
	if s.Dir != "" {
		if file, err = s.file(c); err != nil {
			return 0, err
		}
		var known remembered
		if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &known) == nil && known.Rate > 0 {
			return known.Rate, nil
		}
	}
	for _, e := range c.Engines {
		c.longest = max(c.longest, longest(e, s.Targets))
	}
	rate, err := highest(s.First, func(rate float64) (bool, error) { return s.copes(ctx, c, rate) })
	if err != nil {
		return 0, fmt.Errorf("capacity of %d engines: %w", s.Replicas, err)
	}
	if file != "" {
		_ = SaveJSON(file, remembered{rate}) // a cache that cannot be written is none
	}
	return rate, nil
}

// longest is the longest prompt whose first token an idle engine gives in good time, none of it cached. The longer
// ones are no policy's fault, and a capacity that counted them would be that of an idle fleet. The config has its
// defaults filled in.
func longest(c enginesim.Config, good drive.Targets) int {
	preset, _ := enginesim.FindPreset(c.Preset) // the config was checked
	return sort.Search(c.MaxModelLen-1, func(i int) bool {
		return !good.Good(preset.Prefill(i+1, c.MaxBatchedTokens), 0)
	})
}

// copes reports whether the goodput at a rate is good enough, of prompts up to the longest.
func (s *Search) copes(ctx context.Context, c Config, rate float64) (bool, error) {
	if s.Progress != nil {
		s.Progress(rate)
	}
	rs, err := s.Traffic.Requests(rate, capacitySeed)
	if err != nil {
		return false, err
	}
	n := judged(rs, s.WarmUp, c.longest)
	if n == 0 { // none could be in time, or there is none
		c.longest = math.MaxInt
		n = judged(rs, s.WarmUp, c.longest)
	}
	if n == 0 {
		return false, fmt.Errorf("no request arrives after the warm-up of %v at a rate of %.3g", s.WarmUp, rate)
	}
	c.slow = int(float64(n)*(1-goodEnough)) + 1
	res, err := Run(ctx, NewPrompts(rs), c)
	switch {
	case errors.Is(err, errSlow):
		return false, nil
	case err != nil:
		return false, err
	}
	return res.FirstError == nil, res.FirstError
}

// judged counts the requests after the warm-up whose prompts have at most so many tokens.
func judged(rs []workload.Request, warmUp time.Duration, most int) (n int) {
	for i := range rs {
		if rs[i].At >= warmUp && rs[i].PromptTokens <= most {
			n++
		}
	}
	return n
}

const (
	// goodEnough is the goodput with which a fleet copes.
	goodEnough = 0.95
	// precision ends the search for a capacity: the ratio of the bounds.
	precision = 1.03
	// farthest is how far, up or down, the search looks for its first bounds.
	farthest = 1 << 20
)

// highest is the highest rate with which a fleet copes, by doubling or halving the first one until there are bounds,
// and bisection to 3 %.
func highest(first float64, copes func(rate float64) (bool, error)) (float64, error) {
	good, bad, rate := 0., math.Inf(1), first
	for bad > good*precision {
		if rate > first*farthest || rate < first/farthest {
			return 0, fmt.Errorf("it is not between %.3g and %.3g", min(rate, first), max(rate, first))
		}
		ok, err := copes(rate)
		if err != nil {
			return 0, err
		}
		if ok {
			good = rate
		} else {
			bad = rate
		}
		switch {
		case math.IsInf(bad, 1):
			rate *= 2
		case good == 0:
			rate /= 2
		default:
			rate = (good + bad) / 2
		}
	}
	return good, nil
}

// file is named by all that a capacity depends on: the workload as it is at the first rate, the engines, the fleet and
// what counts as good.
func (s *Search) file(c Config) (string, error) {
	rs, err := s.Traffic.Requests(s.First, capacitySeed)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprint(h, capacityVersion, s.Replicas, s.WarmUp, c.Engines, s.First, s.Targets.Full())
	if err := gob.NewEncoder(h).Encode(rs); err != nil {
		return "", err
	}
	return filepath.Join(s.Dir, "capacity-"+hex.EncodeToString(h.Sum(nil)[:16])+".json"), nil
}

// SaveJSON writes an object to a file, in one piece. What reads it takes a file that broke off for none: it is no JSON.
func SaveJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
