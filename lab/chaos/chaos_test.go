package chaos

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOutcomes(t *testing.T) {
	for _, tt := range []struct {
		code               codes.Code
		received, attempts int
		want               Outcome
	}{
		{codes.OK, 3, 1, Served},
		{codes.OK, 3, 2, Served},
		{codes.Unavailable, 1, 1, Cut},
		{codes.ResourceExhausted, 1, 1, Cut},
		{codes.Unavailable, 0, 2, SentTwice},
		{codes.Unavailable, 0, 1, Lost},
		{codes.Internal, 0, 1, Lost},
		{codes.ResourceExhausted, 0, 3, Refused},
		{codes.DeadlineExceeded, 2, 1, TimedOut},
	} {
		c := &Call{Received: tt.received, Attempts: tt.attempts, Err: status.Error(tt.code, "x")}
		require.Equal(t, tt.want, outcomeOf(c), "%+v", tt)
	}
}

// story is a stage with one round of calls before each of the steps given, and one after: a string of replicas a
// round, one letter for each session.
func story(rounds ...string) (*stage, []Call) {
	s := &stage{Options: &Options{Sessions: len(rounds[0]), Replicas: 3, PromptTokens: 80}, touched: map[string]time.Duration{}}
	var calls []Call
	for i, round := range rounds {
		for session, id := range round {
			at := time.Duration(i)*time.Second + time.Duration(session+1)*time.Millisecond
			calls = append(calls, Call{
				Index: len(calls), Session: session, Start: at, End: at + 1, Replica: string(id), Attempts: 1,
				Outcome: Served, Prompt: 100, Cached: 90,
			})
		}
	}
	return s, calls
}

func TestMoved(t *testing.T) {
	s, calls := story("aabb", "ccbb", "ccbb", "cccb", "aabb", "aabb")
	s.steps = []time.Duration{time.Second, 3 * time.Second, 5 * time.Second}
	s.harmed = [][]string{{"a"}, {"b"}}
	cold := map[[2]int]bool{{1, 0}: true, {1, 1}: true, {3, 2}: true} // by round and session
	for i := range calls {
		if cold[[2]int{int(calls[i].Start / time.Second), calls[i].Session}] {
			calls[i].Cached = 0
		}
	}
	shares, mean, held := s.moved(calls)
	require.Equal(t, []float64{0.5, 0.25}, shares, "a was warm again when two came back")
	require.InDelta(t, 0.375, mean, 1e-9)
	require.InDelta(t, 0.5, held, 1e-9, "a had two of four, so had b")

	slices.Reverse(calls)
	again, _, _ := s.moved(calls)
	require.Equal(t, shares, again, "in whatever order they ended")
	s.steps = nil
	_, mean, _ = s.moved(calls)
	require.Negative(t, mean)
}

// A session that another client sends back only later was moved by the step that emptied its replica, not by the
// one in which it returns.
func TestMovedLater(t *testing.T) {
	s, calls := story("aabb", "ccbb", "ccbb", "acbb", "aabb")
	s.steps = []time.Duration{time.Second, 3 * time.Second, 4 * time.Second}
	s.harmed = [][]string{{"a"}, {"x"}}
	for i := range calls {
		calls[i].Cached = 0 // no replica ever has anything
	}
	shares, _, _ := s.moved(calls)
	require.Equal(t, []float64{0.5, 0}, shares)
	s.harmed[0] = nil
	shares, _, _ = s.moved(calls)
	require.Equal(t, []float64{0.5, 0.25}, shares, "a lost no session")

	s, calls = story("aabb", "aacc", "aabb", "bbbb", "aabb")
	s.steps = []time.Duration{time.Second, 3 * time.Second, 5 * time.Second}
	s.harmed = [][]string{{"b"}, {"a"}}
	for i := range calls {
		calls[i].Cached = 0
	}
	shares, _, _ = s.moved(calls)
	require.Equal(t, []float64{0.5, 0.5}, shares, "b had never had those of a")
}

func TestMisrouted(t *testing.T) {
	s, calls := story("aabb", "bbbb", "abca")
	s.harm = time.Second
	s.touched["a"] = time.Second
	require.Equal(t, 2, s.misrouted(calls), "b's sessions went to c and a without any event at b")
	calls[len(calls)-1].Attempts = 2
	require.Equal(t, 1, s.misrouted(calls), "another attempt goes elsewhere")
}

func TestRecovery(t *testing.T) {
	s, calls := story("abcabc", "abcabc", "aaaaaa", "aabbab", "abcabc", "abcabc")
	s.harm, s.back = 2*time.Second, 3*time.Second
	for i := range calls {
		if at := calls[i].Start; at > 3*time.Second && at < 4*time.Second {
			calls[i].Cached = 10
		}
	}
	r := &Result{Replicas: 3}
	s.recovery(r, calls)
	require.InDelta(t, 0.9, r.CachedBefore, 1e-9)
	require.InDelta(t, 0.9, r.CachedAfter, 1e-9)
	require.InDelta(t, 1.001, r.LoadBack, 1e-9, "the first window that is as even as the calm")
	require.InDelta(t, 1.001, r.CacheBack, 1e-9)
	require.Equal(t, 3*90, r.Refilled, "a computed most of aabbab, 90 tokens of each prompt")

	calls[len(calls)-1].Cached, calls[len(calls)-2].Cached = 0, 0
	s.recovery(r, calls)
	require.InDelta(t, -1, r.CacheBack, 1e-9, "it did not stay")
	require.Equal(t, -1, r.Refilled)
}

func TestCheck(t *testing.T) {
	sc := &Scenario{may: []Outcome{Cut}, moves: true}
	r := &Result{Policy: ring, Outcomes: map[Outcome]int{Served: 9, Cut: 1}, MeanMoved: 0.125, MeanHeld: 0.125}
	r.check(sc)
	require.Empty(t, r.Broken)
	r.Outcomes[Lost], r.Errors = 1, map[Outcome]error{Lost: errors.New("why")}
	r.FailedAfter, r.Leaked, r.MeanMoved = 1, 1, 0.2
	r.check(sc)
	require.Len(t, r.Broken, 4)
	require.Contains(t, r.Broken[0], "why")
}

func TestScenarios(t *testing.T) {
	for _, sc := range Scenarios {
		require.Equal(t, sc.Name == "soak", sc.Apart)
		require.Equal(t, slices.Contains([]string{"abort", "kill", "hang"}, sc.Name), sc.Processes)
	}
	_, err := Run(t.Context(), Options{Scenario: "nothing", Policy: "round_robin"})
	require.ErrorContains(t, err, "nothing")
	_, err = Run(t.Context(), Options{Scenario: "kill", Policy: "round_robin", Replicas: 1})
	require.Error(t, err)
	_, err = Run(t.Context(), Options{Scenario: "kill", Policy: "no_such"})
	require.ErrorContains(t, err, "no_such")
}

// An engine that ends before it is ready is an error, and leaves no state.
func TestEngineThatDoesNotStart(t *testing.T) {
	fails := Processes(func(Spec) *exec.Cmd { return exec.Command("false") })
	_, err := fails(t.Context(), Spec{})
	require.ErrorContains(t, err, "before it printed its address")
	missing := Processes(func(Spec) *exec.Cmd { return exec.Command("/no/such/program") })
	_, err = missing(t.Context(), Spec{})
	require.Error(t, err)
	_, err = Run(t.Context(), Options{Scenario: "kill", Policy: "round_robin", Launch: fails})
	require.Error(t, err)
}

// A run that is interrupted ends, and everything with it.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Run(ctx, Options{
		Scenario: "rolling-restart", Policy: "round_robin", Replicas: 2, Sessions: 4, PromptTokens: 16, OutputTokens: 1,
		Log: func(what string) {
			if what == "calm" {
				cancel()
			}
		},
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestWindows(t *testing.T) {
	_, calls := story("aab", "abc")
	calls[5].Outcome, calls[5].Err = Cut, io.EOF
	require.InDelta(t, 2, uneven(calls[:3], 3), 1e-9)
	_, total := busiest(calls[3:], func(*Call) int { return 1 })
	require.Equal(t, 2, total, "calls that were not served do not count")
	require.Zero(t, hitRatio(nil))
	require.Zero(t, uneven(nil, 3))
}
