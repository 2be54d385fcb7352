package sim

import (
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

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
