package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/race"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// skipUnderRace skips a long test of figures under the race detector; a run has one goroutine.
func skipUnderRace(t testing.TB) {
	t.Helper()
	if race.Enabled {
		t.Skip("figures of runs with one goroutine")
	}
}

// chats is a small workload of conversations.
func chats(t testing.TB, rate float64) []workload.Request {
	t.Helper()
	return chatsFor(t, rate, time.Minute)
}

func chatsFor(t testing.TB, rate float64, d time.Duration) []workload.Request {
	t.Helper()
	rs, err := workload.Generate(workload.Spec{Name: "chat", Rate: rate, Duration: d, Seed: 5})
	require.NoError(t, err)
	return rs
}

func named(policyName string) policy.Config {
	return policy.Config{Policy: policy.Selection{Name: policyName}}
}

// small is a fleet for chats.
func small(policyName string, clients int, share Share) Config {
	return Config{
		Replicas: 4, Clients: clients, Engines: []enginesim.Config{{KVTokens: 120_000}}, Channel: named(policyName),
		Share: share, WarmUp: 10 * time.Second, Seed: 1,
	}
}

func runOf(t testing.TB, rs []workload.Request, c Config) *drive.Result {
	t.Helper()
	res, err := Run(t.Context(), NewPrompts(rs), c)
	require.NoError(t, err)
	return res
}

func newPolicy(t testing.TB) (policy.Policy, error) {
	t.Helper()
	return policy.New("power_of_two_choices", nil)
}

func policyRouter(t testing.TB) *router.Router {
	t.Helper()
	p, err := newPolicy(t)
	require.NoError(t, err)
	return policytest.NewRouter(t, p, policytest.Fleet(2))
}
