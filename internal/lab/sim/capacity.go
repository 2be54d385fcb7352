package sim

import (
	"cmp"
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
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// capacityVersion is raised when engines or arrivals change so that remembered capacities no longer hold.
const capacityVersion = 2

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

// Capacity finds it by bisection to 3 %, or remembers it.
func Capacity(ctx context.Context, s Search) (float64, error) {
	file := ""
	if s.Dir != "" {
		key, err := s.key()
		if err != nil {
			return 0, err
		}
		file = filepath.Join(s.Dir, "capacity-"+key+".json")
		if rate, ok := remembered(file); ok {
			return rate, nil
		}
	}
	most, err := s.longest()
	if err != nil {
		return 0, err
	}
	rate, err := highest(s.First, func(rate float64) (bool, error) { return s.copes(ctx, rate, most) })
	if err != nil {
		return 0, fmt.Errorf("capacity of %d engines: %w", s.Replicas, err)
	}
	if file != "" {
		_ = SaveJSON(file, capacityFile{rate}) // a cache that cannot be written is none
	}
	return rate, nil
}

// longest is the longest prompt that the best of the engines serves in good time.
func (s *Search) longest() (int, error) {
	c, err := Config{Replicas: s.Replicas, Clients: 1, Engines: s.Engines}.resolve()
	if err != nil {
		return 0, err
	}
	most := 0
	for _, e := range c.Engines {
		n, err := longest(e, s.Targets)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

// copes reports whether the goodput at a rate is good enough, of prompts up to a length.
func (s *Search) copes(ctx context.Context, rate float64, most int) (bool, error) {
	if s.Progress != nil {
		s.Progress(rate)
	}
	rs, err := s.Traffic.Requests(rate, capacitySeed)
	if err != nil {
		return false, err
	}
	n := judged(rs, s.WarmUp, most)
	if n == 0 { // none could be in time, or there is none
		most = math.MaxInt
		n = judged(rs, s.WarmUp, most)
	}
	if n == 0 {
		return false, fmt.Errorf("no request arrives after the warm-up of %v at a rate of %.3g", s.WarmUp, rate)
	}
	res, err := Run(ctx, NewPrompts(rs), Config{
		Replicas: s.Replicas, Clients: 1, Engines: s.Engines, WarmUp: s.WarmUp, Targets: s.Targets, Seed: 1,
		Channel: policy.Config{Policy: policy.Selection{Name: roundrobin.Name}},
		slow:    int(float64(n)*(1-goodEnough)) + 1, longest: most,
	})
	switch {
	case errors.Is(err, errSlow):
		return false, nil
	case err != nil:
		return false, err
	case res.FirstError != nil:
		return false, res.FirstError
	}
	return true, nil
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
	// doublings bounds how far, up or down, it looks for its first bounds.
	doublings = 20
)

// highest is the highest rate with which a fleet copes, by bisection to 3 %. The search begins at first, and goes
// no further than a million times above or below it.
func highest(first float64, copes func(rate float64) (bool, error)) (float64, error) {
	good, bad, err := bracket(first, copes)
	for err == nil && bad > good*precision {
		var ok bool
		rate := (good + bad) / 2
		if ok, err = copes(rate); ok {
			good = rate
		} else {
			bad = rate
		}
	}
	return good, err
}

// bracket returns a rate that a fleet copes with and one, twice as high, that it does not.
func bracket(first float64, copes func(rate float64) (bool, error)) (good, bad float64, err error) {
	up, err := copes(first)
	factor := 2.
	if !up {
		factor = 0.5
	}
	rate := first
	for range doublings {
		if err != nil {
			return 0, 0, err
		}
		last := rate
		rate *= factor
		var ok bool
		if ok, err = copes(rate); err == nil && ok != up {
			return min(last, rate), max(last, rate), nil
		}
	}
	return 0, 0, cmp.Or(err, fmt.Errorf("it is not between %.3g and %.3g", min(rate, first), max(rate, first)))
}

// key names all that a capacity depends on: the workload as it is at the first rate, the engines, the fleet and
// what counts as good.
func (s *Search) key() (string, error) {
	rs, err := s.Traffic.Requests(s.First, capacitySeed)
	if err != nil {
		return "", err
	}
	c, err := Config{Replicas: s.Replicas, Clients: 1, Engines: s.Engines}.resolve()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprint(h, capacityVersion, s.Replicas, s.WarmUp, c.Engines, s.First, s.Targets.Full())
	if err := gob.NewEncoder(h).Encode(rs); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// capacityFile is what stands in the file.
type capacityFile struct {
	Rate float64 `json:"rate"`
}

func remembered(file string) (float64, bool) {
	var c capacityFile
	b, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(b, &c) != nil || !(c.Rate > 0) {
		return 0, false
	}
	return c.Rate, true
}

// SaveJSON writes a file as a whole or not at all.
func SaveJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name()) //nolint:errcheck // The first error is the one to report.
	}
	return err
}
