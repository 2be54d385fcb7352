package matrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/strict"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/workload"
)

// Trace is the workload that is not generated.
const Trace = "trace"

// Cell is one situation.
type Cell struct {
	// Name is unique: small letters, digits, dashes and dots. Files are named by it.
	Name string `json:"name"`
	// Factor is what the cell varies, the heading that it stands under.
	Factor string `json:"factor,omitempty"`
	// Workload is Trace or one of workload.Names; Copies are of the trace, Unshared is as in a workload.Spec.
	Workload string  `json:"workload"`
	Copies   int     `json:"copies,omitempty"`
	Unshared float64 `json:"unshared,omitempty"`
	// Load is the part of the capacity; Rate, if it is not 0, is the rate itself: requests per second, or how much
	// faster than recorded the trace arrives.
	Load float64 `json:"load"`
	Rate float64 `json:"rate,omitempty"`
	// Burst is how many requests, those in the middle, arrive at one instant.
	Burst int `json:"burst,omitempty"`
	// Replicas and Clients are how many there are.
	Replicas int `json:"replicas"`
	Clients  int `json:"clients"`
	// Presets and KVTokens are the engines, which take turns and have caches of one size.
	Presets  []string `json:"presets"`
	KVTokens int      `json:"kv_tokens"`
	// Share, IntervalMS, Affinity and NoEvents are as in a sim.Config.
	Share      sim.Share `json:"share"`
	IntervalMS int       `json:"interval_ms,omitempty"`
	Affinity   bool      `json:"affinity,omitempty"`
	NoEvents   bool      `json:"no_events,omitempty"`
	// Minutes is how long requests arrive, WarmUpMinutes how many of them are not measured; 0 = the plan's
	// for generated workloads, all of a trace and five minutes of warm-up.
	Minutes       float64 `json:"minutes,omitempty"`
	WarmUpMinutes float64 `json:"warm_up_minutes,omitempty"`
	// Proxies: proxies are run with one client too.
	Proxies bool `json:"proxies,omitempty"`
}

// Base is the cell around which one factor varies.
func Base() Cell {
	return Cell{
		Name: "base", Workload: Trace, Load: 0.7, Replicas: 16, Clients: 64, Presets: []string{"h100-14b"}, KVTokens: 1_024_000,
		Share: sim.ShareNone,
	}
}

// ErrCell is a cell that cannot be.
var ErrCell = errors.New("matrix: invalid cell")

var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,63}$`)

// check refuses a cell, naming the field.
func (c *Cell) check() error {
	trace := c.Workload == Trace
	for _, f := range []struct {
		name  string
		value any
		ok    bool
	}{
		{"name", "it is not small letters, digits, dashes and dots", nameRule.MatchString(c.Name)},
		{"workload", c.Workload, trace || slices.Contains(workload.Names(), c.Workload)},
		{"copies", c.Copies, c.Copies >= 0 && c.Copies <= 64 && (trace || c.Copies <= 1)},
		{"unshared", c.Unshared, c.Unshared >= 0 && c.Unshared < 1 && (!trace || c.Unshared == 0)},
		{"load", c.Load, c.Load > 0 && c.Load <= 10},
		{"rate", c.Rate, c.Rate >= 0 && c.Rate < 1e6},
		{"burst", c.Burst, c.Burst >= 0},
		{"presets", "none", len(c.Presets) > 0},
		{"interval_ms", c.IntervalMS, c.IntervalMS >= 0},
		{"minutes", c.Minutes, c.Minutes >= 0 && c.Minutes < 1e5},
		{"warm_up_minutes", c.WarmUpMinutes,
			c.WarmUpMinutes >= 0 && c.WarmUpMinutes < 1e5 && (c.Minutes == 0 || c.WarmUpMinutes < c.Minutes)},
	} {
		if !f.ok {
			return fmt.Errorf("%w: %q: %s: %v", ErrCell, c.Name, f.name, f.value)
		}
	}
	if err := c.config().Check(); err != nil {
		return fmt.Errorf("%w: %q: %w", ErrCell, c.Name, err)
	}
	return nil
}

// Check refuses cells that cannot be, and names that come twice.
func Check(cells []Cell) error {
	seen := map[string]bool{}
	for i := range cells {
		if err := cells[i].check(); err != nil {
			return err
		}
		if seen[cells[i].Name] {
			return fmt.Errorf("%w: %q: name: it comes twice", ErrCell, cells[i].Name)
		}
		seen[cells[i].Name] = true
	}
	return nil
}

// config is what a run of the cell has, but for the policy, the seed and the warm-up.
func (c *Cell) config() sim.Config {
	config := sim.Config{
		Replicas: c.Replicas, Clients: c.Clients, Share: c.Share, Interval: time.Duration(c.IntervalMS) * time.Millisecond,
		Affinity: c.Affinity, NoEvents: c.NoEvents,
	}
	for _, p := range c.Presets {
		config.Engines = append(config.Engines, enginesim.Config{Preset: p, KVTokens: c.KVTokens})
	}
	return config
}

// String is the cell as a file of cells has it.
func (c *Cell) String() string {
	b, _ := json.Marshal(c) // numbers and strings
	return string(b)
}

// Read reads cells: {"cells":[…]}, each of which has only what differs from Base.
func Read(r io.Reader) ([]Cell, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var file struct {
		Cells []json.RawMessage `json:"cells"`
	}
	if err := strict.Decode(b, &file); err != nil {
		return nil, fmt.Errorf("matrix: %w", err)
	}
	cells := make([]Cell, len(file.Cells))
	for i, raw := range file.Cells {
		cells[i] = Base()
		cells[i].Name = ""
		if err := strict.Decode(raw, &cells[i]); err != nil {
			return nil, fmt.Errorf("matrix: cells[%d]: %w", i, err)
		}
	}
	if len(cells) == 0 {
		return nil, errors.New("matrix: cells: there are none")
	}
	return cells, Check(cells)
}
