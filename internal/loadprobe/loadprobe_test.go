package loadprobe

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Many requests that probe at once make one probe. Those that come after its answer make another.
func TestAnswersAreShared(t *testing.T) {
	s, now := new(State), time.Unix(1000, 0)
	answered, first := s.Begin(now)
	require.True(t, first)
	for range 10 {
		same, first := s.Begin(now.Add(MaxWait))
		require.False(t, first)
		require.Equal(t, answered, same)
	}
	require.False(t, s.End(now.Add(MaxWait), nil))
	<-answered
	answered, first = s.Begin(now.Add(MaxWait))
	require.True(t, first)
	require.NotNil(t, answered)
}

// No request waits for a late answer, nor for the next one of that replica until one is in time.
func TestLateAnswers(t *testing.T) {
	s, now := new(State), time.Unix(1000, 0)
	for i, took := range []time.Duration{MaxWait + 1, time.Second, 0, 0} {
		answered, first := s.Begin(now)
		require.True(t, first)
		require.Equal(t, i == 0 || i == 3, answered != nil, i)
		late, first := s.Begin(now.Add(MaxWait + 1))
		require.False(t, first)
		require.Nil(t, late)
		s.End(now.Add(took), nil)
		now = now.Add(took)
	}
}

// A replica that fails is probed less and less often.
func TestFailures(t *testing.T) {
	s, now := new(State), time.Unix(1000, 0)
	for i, pause := range []time.Duration{1, 2, 4, 8, 10, 10} {
		_, first := s.Begin(now)
		require.True(t, first)
		require.Equal(t, i == 0, s.End(now, errors.New("no such method")))
		answered, first := s.Begin(now.Add(pause*time.Second - 1))
		require.False(t, first)
		require.Nil(t, answered)
		now = now.Add(pause * time.Second)
	}
	_, _ = s.Begin(now)
	require.False(t, s.End(now, nil))
	_, first := s.Begin(now)
	require.True(t, first)
	require.True(t, s.End(now, errors.New("again")), "the first after an answer")
}

// A probe that the client does not make does not count as a failure of the replica.
func TestProbesThatAreNotMade(t *testing.T) {
	s, now := new(State), time.Unix(1000, 0)
	for range 5 {
		_, first := s.Begin(now)
		require.True(t, first)
		require.False(t, s.End(now, ErrNotMade))
	}
	_, _ = s.Begin(now)
	require.True(t, s.End(now, errors.New("no such method")), "the first failure")
	now = now.Add(Timeout)
	_, first := s.Begin(now)
	require.True(t, first)
}

// Replicas are probed until the policy chooses one again that has answered, and at most five.
func TestBefore(t *testing.T) {
	for _, tt := range []struct {
		idle string // has no load; the others have more than the policy of the test accepts
		want int
	}{{"r0", 1}, {"r2", 3}, {"r7", 5}} {
		r := policytest.NewRouter(t, policy.Policy{Uses: policy.UsesLoad, Choose: leastLoaded}, policytest.Fleet(8))
		var probed []string
		Before(t.Context(), r, new(policy.Request), func(rep *policy.Replica) bool {
			for _, id := range probed {
				if id == rep.ID {
					return false
				}
			}
			probed = append(probed, rep.ID)
			l := load.Report{Ongoing: 9}
			if rep.ID == tt.idle {
				l.Ongoing = 0
			}
			r.Report(rep.ID, l)
			return true
		})
		require.Len(t, probed, tt.want, probed)
		for _, rep := range r.View().Replicas() {
			require.Zero(t, rep.Ongoing(), "a probe reserves nothing")
		}
	}
}

// Where all replicas have the same load, prompts stay where they are: those that were not probed do not count as idle.
func TestEvenLoad(t *testing.T) {
	for i := range 20 {
		routed := func(probed func(*router.Router, *policy.Request)) string {
			p, err := kvaware.New(kvaware.Config{})
			require.NoError(t, err)
			r, q := policytest.NewRouter(t, p, policytest.Fleet(16)), new(policy.Request)
			q.SetPrompt(policy.Prompt{Text: strings.Repeat(fmt.Sprint(i, " "), 20_000)})
			probed(r, q)
			return policytest.Route(t, r, q)
		}
		home := routed(func(*router.Router, *policy.Request) {})
		require.Equal(t, home, routed(func(r *router.Router, q *policy.Request) {
			probed := make(map[*policy.Replica]bool)
			Before(t.Context(), r, q, func(rep *policy.Replica) bool {
				first := !probed[rep]
				probed[rep] = true
				r.Report(rep.ID, load.Report{Ongoing: 60, QueuedTokens: 30_000})
				return first
			})
			require.Len(t, probed, rounds)
		}))
	}
}

// While load grows everywhere, the replicas that earlier requests have asked do not look idle: prompts stay at home. So
// do those of requests that ask at the same time.
func TestGrowingLoad(t *testing.T) {
	p, err := kvaware.New(kvaware.Config{})
	require.NoError(t, err)
	r := policytest.NewRouter(t, p, policytest.Fleet(8))
	prompt := func(i int) *policy.Request {
		q := new(policy.Request)
		q.SetPrompt(policy.Prompt{Text: strings.Repeat(fmt.Sprint(i, " "), 20_000)})
		return q
	}
	home := make(map[int]string)
	for i := range 40 {
		home[i] = policytest.Route(t, r, prompt(i))
	}
	for i := range 40 {
		q := prompt(i)
		Before(t.Context(), r, q, func(rep *policy.Replica) bool {
			r.Report(rep.ID, load.Report{Ongoing: 60, QueuedTokens: int64(i) * 200_000})
			return true
		})
		require.Equal(t, home[i], policytest.Route(t, r, q), i)
		r.Load.Asked()
	}
}

// The two replicas that are drawn for a request are probed, and no other, and the request goes to the less busy one.
func TestTwoChoices(t *testing.T) {
	for range 50 {
		p, err := poweroftwo.New(poweroftwo.Config{})
		require.NoError(t, err)
		r, q := policytest.NewRouter(t, p, policytest.Fleet(16)), new(policy.Request)
		probed := make(map[string]bool)
		Before(t.Context(), r, q, func(rep *policy.Replica) bool {
			first := !probed[rep.ID]
			probed[rep.ID] = true
			r.Report(rep.ID, load.Report{Ongoing: 1 + rep.Index(), QueuedTokens: -1})
			return first
		})
		require.Len(t, probed, 2)
		chosen := policytest.Pick(t, r, q).Decision.Replica
		for id := range probed {
			require.LessOrEqual(t, chosen.Index(), r.View().ByID(id).Index())
		}
	}
}

// leastLoaded takes the first of the least loaded.
func leastLoaded(_ *policy.Request, v policy.View) policy.Decision {
	best := v.Replicas()[0]
	for _, r := range v.Replicas() {
		if v.Load(r) < v.Load(best) {
			best = r
		}
	}
	return policy.To(best, policy.ReasonLeastLoaded)
}

func TestSourcesOfClients(t *testing.T) {
	require.NoError(t, Source("grpc:orca").Check())
	require.EqualError(t, Source("http://HOST/").Check(), `"http://HOST/" is none of [grpc:openengine grpc:orca grpc:sglang grpc:tokenspeed grpc:vllm]`)
}
