package sim

import (
	"sort"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// longest is the longest prompt whose first token an idle engine gives in good time, none of it cached. The longer
// ones are no policy's fault, and a capacity that counted them would be that of an idle fleet.
func longest(c enginesim.Config, good drive.Targets) (int, error) {
	idle, err := enginesim.New(c)
	if err != nil {
		return 0, err
	}
	c = idle.Config()
	most := min(c.MaxModelLen, c.KVTokens) - 1
	n := sort.Search(most, func(i int) bool { return err == nil && !inTime(c, i+1, good, &err) })
	return n, err
}

// inTime runs one prompt of n tokens alone.
func inTime(c enginesim.Config, n int, good drive.Targets, failed *error) bool {
	e, err := enginesim.New(c)
	if err != nil {
		*failed = err
		return false
	}
	q := workload.Request{ID: "alone", PromptTokens: n, OutputTokens: 1,
		Segments: []workload.Segment{{Seed: 1, Len: int32(n)}}}
	seq, err := e.Submit(0, enginesim.FromWorkload(&q, c.BlockSize))
	if err != nil {
		*failed = err
		return false
	}
	for at, busy := e.NextStep(); busy; at, busy = e.NextStep() {
		e.Step(at)
	}
	result := seq.Result()
	return good.Good(result.TTFT(), 0)
}
