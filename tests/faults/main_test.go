package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/warmpath/warmpath/lab/chaos"
)

// engineSpec in the environment makes this binary an engine, the one that the JSON describes.
const engineSpec = "WARMPATH_TEST_ENGINE"

func TestMain(m *testing.M) {
	if spec := os.Getenv(engineSpec); spec != "" {
		if err := serveEngine(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if addr := os.Getenv(replicaAt); addr != "" {
		if err := serveReplica(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

// serveEngine is a minimal `warmpath engine`.
func serveEngine(text string) error {
	var spec chaos.Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	term, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s, err := chaos.Serve(lis, spec)
	if err != nil {
		return err
	}
	fmt.Println("listens on " + s.Addr().String())
	<-term.Done()
	grace, cancel := context.WithTimeout(context.Background(), spec.Grace)
	defer cancel()
	s.Stop(grace)
	return nil
}

// processes starts engines as processes.
func processes(t *testing.T) chaos.Launcher {
	path, err := os.Executable()
	require.NoError(t, err)
	return chaos.Processes(func(s chaos.Spec) *exec.Cmd {
		spec, err := json.Marshal(s)
		if err != nil {
			panic(err) // a struct of numbers
		}
		cmd := exec.Command(path)
		cmd.Env = append(os.Environ(), engineSpec+"="+string(spec))
		return cmd
	})
}

// quickly reconnects sooner than gRPC's default of one second and more, so that the tests are short.
var quickly = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: 20 * time.Second,
})

var policies = []string{"round_robin", "power_of_two_choices", "consistent_hash", "prefix_cache_affinity", "kv_aware"}

// small is a run for a busy machine. No outcome depends on the clock: the deadline of calls is far away, and a
// machine that cannot keep up sends fewer calls.
func small(scenario, policy string, clients int) chaos.Options {
	o := chaos.Options{
		Scenario: scenario, Policy: policy, Clients: clients, Rate: 20, Sessions: 8, PromptTokens: 128, OutputTokens: 4,
		KVTokens: 4096, Calm: 1, Speed: 5, Timeout: time.Minute, InFlight: 32, Dial: []grpc.DialOption{quickly}, Seed: 1,
	}
	if policy == "kv_aware" {
		o.Rate = 10 // every channel gets every block that any call computes
	}
	return o
}

// play runs several scenarios at a time, since they mostly wait, and passes each result to the check.
func play(t *testing.T, runs []chaos.Options, check func(*testing.T, *chaos.Result)) {
	results, errs := make([]*chaos.Result, len(runs)), make([]error, len(runs))
	var all sync.WaitGroup
	for i, o := range runs {
		all.Go(func() { results[i], errs[i] = chaos.Run(t.Context(), o) })
	}
	all.Wait()
	for i, o := range runs {
		t.Run(fmt.Sprintf("%s/%s/%d", o.Scenario, o.Policy, o.Clients), func(t *testing.T) {
			require.NoError(t, errs[i])
			r := results[i]
			// The clock decides how many sessions move while a restarted replica is in slow start, or is ejected
			// since this machine is busy. TestRollingRestart runs without either.
			require.Empty(t, slices.DeleteFunc(r.Broken, func(b string) bool { return strings.Contains(b, "sessions moved") }))
			require.Zero(t, r.Lost)
			require.Zero(t, r.FailedAfter)
			require.Zero(t, r.Leaked)
			unary, streams := 0, 0
			for _, c := range r.History {
				if c.Outcome == chaos.Served && c.Unary {
					unary++
				} else if c.Outcome == chaos.Served {
					streams++
				}
			}
			require.Greater(t, unary, o.Sessions, "unary calls were served")
			require.Greater(t, streams, o.Sessions, "and streams")
			check(t, r)
		})
	}
}

// each makes one run for each policy and number of clients.
func each(policies []string, clients []int, run func(policy string, clients int) chaos.Options) (runs []chaos.Options) {
	for _, p := range policies {
		for _, n := range clients {
			runs = append(runs, run(p, n))
		}
	}
	return runs
}

// most makes a run for each policy with one client, and for some policies with sixteen clients that share nothing.
func most(withMany []string, run func(policy string, clients int) chaos.Options) []chaos.Options {
	return append(each(policies, []int{1}, run), each(withMany, []int{16}, run)...)
}
