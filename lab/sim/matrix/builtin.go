package matrix

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/workload"
)

// Builtin is the matrix of the project: Base and one factor at a time, then the corners and the cells under pressure.
func Builtin() []Cell {
	cells := []Cell{Base()}
	cells[0].Factor, cells[0].Proxies = "base", true
	cells = append(cells, factors()...)
	cells = append(cells, corners()...)
	return append(append(cells, pressure()...), bursts()...)
}

// bursts are cells in which 750 of about 2,400 requests come at one instant, without KV events.
func bursts() []Cell {
	var cells []Cell
	for _, share := range []sim.Share{sim.ShareNone, sim.SharePoll, sim.ShareLoad} {
		cells = append(cells, vary("burst", "burst-"+string(share), func(c *Cell) {
			c.Workload, c.Load, c.Rate, c.Burst = "b2b", 0.7, 8, 750
			c.Replicas, c.KVTokens, c.Share, c.NoEvents = 8, 352_000, share, true
			c.Minutes, c.WarmUpMinutes = 5, 1
		}))
	}
	return cells
}

// pressedWorkload is one whose cells have rates: how much the fleet can do depends on the policy, and full is the rate
// with which a router that sees all keeps a goodput of 0.95.
type pressedWorkload struct {
	workload           string
	full               float64 // requests per second
	loads              []float64
	replicas, kvTokens int
}

// pressed are those in which memory or long prompts decide.
var pressed = []pressedWorkload{
	{"b2b", 11.5, []float64{0.7, 0.78, 0.9, 1.1}, 8, 352_000},
	{"documents", 18, []float64{0.7}, 16, 1_024_000},
	{"coding-agents", 7.3, []float64{0.7, 1.5}, 16, 1_024_000},
}

// underPressure is their heading.
const underPressure = "pressure"

// pressure is cells with one client, and with 64 that share nothing, poll, share load, or load and index.
func pressure() []Cell {
	var cells []Cell
	for _, p := range pressed {
		for _, load := range p.loads {
			for _, share := range []sim.Share{"", sim.ShareNone, sim.SharePoll, sim.ShareLoad, sim.ShareBroadcast} {
				name := fmt.Sprintf("%s-%.0f-%s", p.workload, 100*load, cmp.Or(share, "alone"))
				cells = append(cells, vary(underPressure, name, func(c *Cell) {
					c.Workload, c.Load, c.Rate = p.workload, load, load*p.full
					c.Replicas, c.KVTokens = p.replicas, p.kvTokens
					if c.Share = share; share == "" {
						c.Share, c.Clients = sim.ShareNone, 1
					}
				}))
			}
		}
	}
	return cells
}

// basic are the workloads of factors and corners.
func basic() []string {
	return slices.DeleteFunc(workload.Names(), func(name string) bool {
		return slices.ContainsFunc(pressed, func(p pressedWorkload) bool { return p.workload == name })
	})
}

// minutesOf are workloads that need other times than conversations do: single requests are soon as they always
// are, answers of minutes are long under way before a fleet is as full as it will be.
var minutesOf = map[string][2]float64{
	"coding-agents": {12, 5}, "decode-heavy": {7, 2}, "hot-prefix": {5, 2}, "nothing-shared": {6, 2},
	"reasoning": {20, 8},
}

// vary is Base with a change, under a name and a heading.
func vary(factor, name string, change func(*Cell)) Cell {
	c := Base()
	c.Factor, c.Name = factor, name
	change(&c)
	if times, ok := minutesOf[c.Workload]; ok && c.Minutes == 0 {
		c.Minutes, c.WarmUpMinutes = times[0], times[1]
	}
	return c
}

// many is a fleet so large that its share of the trace comes in copies, not faster, and a part of it will do.
func many(c *Cell) {
	c.Replicas, c.Copies, c.Minutes = 64, 4, 30
}

func factors() []Cell {
	var cells []Cell
	add := func(factor, name string, change func(*Cell)) {
		c := vary(factor, name, change)
		c.Proxies = c.Clients > 1
		cells = append(cells, c)
	}
	for _, name := range basic() {
		add("workload", name, func(c *Cell) { c.Workload = name })
	}
	for _, load := range []float64{0.4, 0.9, 1.1} {
		add("load", fmt.Sprintf("load-%.0f", 100*load), func(c *Cell) { c.Load = load })
	}
	add("replicas", "replicas-4", func(c *Cell) { c.Replicas = 4 })
	add("replicas", "replicas-64", many)
	for _, n := range []int{1, 8} {
		add("clients", fmt.Sprintf("clients-%d", n), func(c *Cell) { c.Clients = n })
	}
	for _, s := range []sim.Share{sim.SharePoll, sim.ShareLoad, sim.ShareBroadcast} {
		add("share", "share-"+string(s), func(c *Cell) { c.Share = s })
	}
	add("kv", "kv-300k", func(c *Cell) { c.KVTokens = 300_000 })
	add("preset", "preset-2xh100-8b", func(c *Cell) { c.Presets, c.Copies, c.Minutes = []string{"2xh100-8b"}, 2, 40 })
	add("preset", "preset-mocker", func(c *Cell) { c.Presets, c.Copies, c.Minutes = []string{"mocker"}, 8, 20 })
	return cells
}

// corners are forty cells in which two factors are off at once, where a policy might lose.
func corners() []Cell {
	var cells []Cell
	add := func(name string, change func(*Cell)) { cells = append(cells, vary("corner", name, change)) }
	of := func(w, what string, change func(*Cell)) {
		add(w+"-"+what, func(c *Cell) {
			c.Workload = w
			change(c)
		})
	}
	for _, w := range basic() {
		of(w, "load", func(c *Cell) { c.Share = sim.ShareLoad })
		of(w, "broadcast", func(c *Cell) { c.Share = sim.ShareBroadcast })
		of(w, "110", func(c *Cell) { c.Load = 1.1 })
	}
	for _, w := range []string{"agents", "cross-session", "hot-prefix", "reasoning"} {
		of(w, "90", func(c *Cell) { c.Load = 0.9 })
	}
	for _, w := range []string{"agents", "chat", "hot-prefix", "nothing-shared"} {
		of(w, "4-replicas", func(c *Cell) { c.Replicas = 4 })
	}
	of("agents", "kv-300k", func(c *Cell) { c.KVTokens = 300_000 })
	of("cross-session", "kv-300k", func(c *Cell) { c.KVTokens = 300_000 })
	of("chat", "affinity", func(c *Cell) { c.Affinity = true })
	of("chat", "unshared", func(c *Cell) { c.Unshared = 0.5 })
	of("hot-prefix", "64-replicas", func(c *Cell) { c.Replicas, c.Minutes, c.WarmUpMinutes = 64, 3, 1 })
	add("share-load-1s", func(c *Cell) { c.Share, c.IntervalMS = sim.ShareLoad, 1000 })
	add("share-load-110", func(c *Cell) { c.Share, c.Load = sim.ShareLoad, 1.1 })
	add("share-load-mixed", func(c *Cell) { c.Share, c.Presets = sim.ShareLoad, []string{"h100-14b", "2xh100-8b"} })
	return cells
}
