package baseline

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one Router with a baseline policy before a few engines.
type world struct {
	t       *testing.T
	router  *router.Router
	fleet   *Fleet
	engines []*enginesim.Engine
	now     time.Duration
}

func newWorld(t *testing.T, name string, replicas int) *world {
	t.Helper()
	return worldOf(t, name, replicas, func(f *Fleet) policy.Policy {
		return New(name, f)
	})
}

func worldOf(t *testing.T, name string, replicas int, build func(*Fleet) policy.Policy) *world {
	t.Helper()
	engine := enginesim.Config{KVTokens: 160_000, BlockSize: 16}
	w := &world{t: t, fleet: NewFleet(name, replicas, []enginesim.Config{engine})}
	members := make([]router.Member, replicas)
	for i := range members {
		members[i].ID = "r" + strconv.Itoa(i)
		e, err := enginesim.New(engine)
		require.NoError(t, err)
		w.engines = append(w.engines, e)
		w.fleet.Watch(e)
	}
	var err error
	w.router, err = router.NewRouter(router.Options{Policy: build(w.fleet), Rand: rand.New(rand.NewPCG(1, 1))})
	require.NoError(t, err)
	w.router.Fleet.Set(members)
	for _, m := range members {
		w.router.Fleet.SetConnected(m.ID, true)
	}
	return w
}

// call is a request under way.
type call struct {
	*router.Reservation
	q *policy.Request
}

// pick routes a prompt of segments: a seed and a length each.
func (w *world) pick(pin string, segments ...int) *call {
	w.t.Helper()
	c := &call{new(router.Reservation), &policy.Request{Pin: pin}}
	c.q.SetPrompt(policy.Prompt{Tokens: prompt(segments...)})
	require.NoError(w.t, w.router.Reserve(w.t.Context(), c.q, c.Reservation, router.How{NoWait: true}))
	return c
}

func prompt(segments ...int) (tokens []uint32) {
	for i := 0; i < len(segments); i += 2 {
		for k := range segments[i+1] {
			tokens = append(tokens, workload.Token(uint64(segments[i]), k))
		}
	}
	return tokens
}

// at returns the replica of a prompt.
func (w *world) at(segments ...int) string {
	w.t.Helper()
	return w.pick("", segments...).Decision.Replica.ID
}

func (w *world) end(c *call) {
	c.PrefillDone()
	c.Release()
	w.router.Complete(c.q, c.Decision, policy.Outcome{Sent: true})
}

// compute lets an engine run a prompt and returns how much of it was cached.
func (w *world) compute(k int, segments ...int) int {
	w.t.Helper()
	e := w.engines[k]
	s, err := e.Submit(w.now, enginesim.FromTokens("x", prompt(segments...), 1, e.Config().BlockSize, 0))
	require.NoError(w.t, err)
	for at, busy := e.NextStep(); busy; at, busy = e.NextStep() {
		e.Step(at)
		w.now = max(w.now, at)
	}
	return s.Result().CachedTokens
}
