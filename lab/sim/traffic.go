package sim

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// Traffic is what arrives: a generated workload, or a trace where that has no name.
type Traffic struct {
	// Workload is what to generate; its Rate and Seed are not used. Its Duration cuts off a trace too.
	Workload workload.Spec
	// Trace is the trace as it was recorded, Copies and Jitter as in workload.Copies and workload.Jitter.
	Trace  []workload.Request
	Copies int
	Jitter time.Duration
	// ToolGaps gives the trace's sessions the times of agents, as in workload.ToolGaps; there is no jitter then.
	ToolGaps bool
	// Burst is how many requests, those in the middle, arrive at one instant.
	Burst int
}

// Requests are those of a seed. Rate is requests per second, or what to divide the trace's times by.
func (t *Traffic) Requests(rate float64, seed uint64) ([]workload.Request, error) {
	rs, err := t.spread(rate, seed)
	if from := max(len(rs)-t.Burst, 0) / 2; t.Burst > 0 {
		for i := from; i < min(from+t.Burst, len(rs)); i++ {
			rs[i].At = rs[from].At
		}
	}
	return rs, err
}

// spread returns the requests without a burst.
func (t *Traffic) spread(rate float64, seed uint64) ([]workload.Request, error) {
	if t.Workload.Name != "" {
		spec := t.Workload
		spec.Rate, spec.Seed = rate, seed
		return workload.Generate(spec)
	}
	rs := slices.Clone(t.Trace)
	workload.ScaleRate(rs, rate)
	rs = workload.Copies(rs, t.Copies)
	if t.ToolGaps {
		workload.ToolGaps(rs, seed)
	} else {
		workload.Jitter(rs, t.Jitter, seed)
	}
	if end := t.Workload.Duration; end > 0 {
		rs = slices.DeleteFunc(rs, func(q workload.Request) bool { return q.At >= end })
	}
	return rs, nil
}

// Prompts are the requests of a workload, sorted by arrival, and as engines get them, hashed. Runs may share them, one
// after the other: every prompt is hashed once, when a run first needs it.
type Prompts struct {
	rs    []workload.Request
	block int // tokens; 0 before the first run
	work  []enginesim.Request
}

// NewPrompts prepares to hash these requests, which are only read.
func NewPrompts(rs []workload.Request) *Prompts { return &Prompts{rs: rs} }

// cut is called before a run over engines with this size of a block.
func (p *Prompts) cut(block int) {
	if p.block != block {
		p.block, p.work = block, make([]enginesim.Request, len(p.rs))
	}
}

// of is request i.
func (p *Prompts) of(i int) enginesim.Request {
	if p.work[i].PromptTokens == 0 {
		p.work[i] = enginesim.FromWorkload(&p.rs[i], p.block)
	}
	return p.work[i]
}
