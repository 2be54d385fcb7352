package sim

import (
	"errors"

	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// errPrompts is a Config with the Prompts of other requests.
var errPrompts = errors.New("sim: prompts: they are those of other requests")

// Prompts are the requests of a workload as engines get them, hashed. Runs of the same requests may share them, one
// after the other: every prompt is hashed once, when a run first needs it.
type Prompts struct {
	rs    []workload.Request
	block int // tokens; 0 before the first run
	work  []enginesim.Request
}

// NewPrompts prepares to hash these requests.
func NewPrompts(rs []workload.Request) *Prompts { return &Prompts{rs: rs} }

// begin is called before a run of these requests over engines with this size of a block.
func (p *Prompts) begin(rs []workload.Request, block int) error {
	if len(rs) != len(p.rs) || len(rs) > 0 && &rs[0] != &p.rs[0] {
		return errPrompts
	}
	if p.block != block {
		p.block, p.work = block, make([]enginesim.Request, len(rs))
	}
	return nil
}

// of is request i.
func (p *Prompts) of(i int) enginesim.Request {
	if p.work[i].PromptTokens == 0 {
		p.work[i] = enginesim.FromWorkload(&p.rs[i], p.block)
	}
	return p.work[i]
}
