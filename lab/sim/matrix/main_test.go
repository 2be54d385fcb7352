package matrix

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/lab/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tiny is a list of cells that take no time.
func tiny(t testing.TB) []Cell {
	t.Helper()
	cells, err := Read(strings.NewReader(`{"cells":[
		{"name":"one","factor":"f","workload":"nothing-shared","replicas":2,"clients":2,"kv_tokens":60000,"proxies":true},
		{"name":"two","factor":"f","workload":"nothing-shared","replicas":2,"clients":1,"kv_tokens":60000,"share":"broadcast"},
		{"name":"three","workload":"trace","replicas":1,"clients":2,"copies":2,"minutes":0.4,"warm_up_minutes":0.05}]}`))
	require.NoError(t, err)
	return cells
}

// plan runs them; lines are what it reports.
func plan(t testing.TB, dir string, lines *[]string) Plan {
	t.Helper()
	trace, err := workload.Generate(workload.Spec{Name: "chat", Rate: 20, Duration: 30 * time.Second, Seed: 9})
	require.NoError(t, err)
	now := time.Unix(0, 0)
	return Plan{
		Cells: tiny(t), Policies: []string{"round_robin", "power_of_two_choices", "smg_cache_aware"}, Seeds: 2,
		Duration: 20 * time.Second, WarmUp: 2 * time.Second, Trace: trace, Jitter: time.Second,
		Dir: dir, Code: "this", Workers: 2,
		Log: func(line string) { *lines = append(*lines, line) },
		Now: func() time.Time { return now },
	}
}
