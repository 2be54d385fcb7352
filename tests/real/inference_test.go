package real

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	_ "github.com/warmpath/warmpath/balancer/kvevents"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/client"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
)

// viaInference calls vllm.Inference for token ids without text: such streams can go on elsewhere. Its answers have no
// cached tokens.
func viaInference(conn grpc.ClientConnInterface) generate {
	stub := vllmpb.NewInferenceClient(conn)
	return func(ctx context.Context, q request) (a answer) {
		a.request = q
		m := &vllmpb.GenerateRequest{
			RequestId: newID(), Model: "tiny",
			Prompt:   &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: q.prompt}},
			Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: q.bound},
			Response: &vllmpb.ResponseOptions{OutputText: new(false), OutputTokenIds: true},
			Kv:       &vllmpb.KvParams{CacheSalt: q.salt},
		}
		if q.adapter != "" {
			m.LoraName = &q.adapter
		}
		begin := time.Now()
		stream, err := stub.GenerateStream(client.WithDecision(ctx, &a.Decision), m)
		for err == nil {
			var m *vllmpb.GenerateResponse
			if m, err = stream.Recv(); err == nil {
				if a.first == 0 {
					a.first = time.Since(begin)
				}
				a.output = append(a.output, m.GetOutputs().GetTokenIds()...)
			}
		}
		if !errors.Is(err, io.EOF) {
			a.err = err
		}
		return a
	}
}

// With vllm.Inference, whose answers have no cached tokens, the expected tokens are those that vLLM's own metrics count,
// wherever the events come from; cache salts and adapters keep prompts apart.
func TestExpectedCachedTokensAreThoseOfTheMetrics(t *testing.T) {
	engines := launch(t, 2, setup{rust: true})
	hits := func() (sum float64) {
		for _, e := range engines {
			n, err := e.counter(t.Context(), "vllm:prefix_cache_hits_total")
			require.NoError(t, err)
			sum += n
		}
		return sum
	}
	// Both channels follow the engines from the start, so each hears of all blocks.
	held, meters, asks := make(caches), make(map[string]*meter), make(map[string]generate)
	for name, events := range map[string]func(e *engine) string{
		"sources:vllm": func(*engine) string { return "kv_events: sources:vllm" },
		"tcp://":       func(e *engine) string { return fmt.Sprintf("kv_events: %q, kv_events_replay: %q", e.events, e.replay) },
	} {
		m := newMeter(t)
		conn := dial(t, fleetFile(t, engines, func(_ int, e *engine) string {
			return "models: [tiny], adapters: [adapter], " + events(e)
		}), m.option, client.WithPolicy(kvaware.Config{}))
		meters[name], asks[name] = m, viaInference(conn)
		require.Eventually(t, func() bool {
			a := asks[name](t.Context(), request{prompt: []uint32{3, 4, 5}, bound: 2}) // fills no block
			require.NoError(t, a.err)
			return m.ofReplica(t, "warmpath.kv_events.connected", "") == 2
		}, time.Minute, 10*time.Millisecond)
	}
	for i, tt := range []struct {
		name, events string
		more         func(i int, q *request)
	}{
		{"events of sources:vllm", "sources:vllm", func(int, *request) {}},
		{"events of tcp://", "tcp://", func(int, *request) {}},
		{"cache salts", "sources:vllm", func(i int, q *request) { q.salt = fmt.Sprint("tenant ", i%2) }},
		{"an adapter", "sources:vllm", func(i int, q *request) {
			if i%2 == 0 {
				q.adapter = "adapter"
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, expected := hits(), 0
			for _, a := range inTurns(t, conversations(8, uint64(20+i)), asks[tt.events], held.heard(t, meters[tt.events]), tt.more) {
				expected += a.MatchedTokens
			}
			require.Positive(t, expected)
			require.Eventually(t, func() bool { return hits()-before == float64(expected) }, time.Minute, 100*time.Millisecond,
				"expected %d, cached %v", expected, hits()-before)
			t.Logf("expected and cached %d", expected)
		})
	}
	t.Run("OpenAI's API behind Envoy", func(t *testing.T) { behindEnvoy(t, engines, hits) })
	t.Run("the Python example", func(t *testing.T) {
		addr := serve(t, engines)
		for _, program := range []string{"generate.py", "generate_asyncio.py"} {
			out := run(t, exec.CommandContext(t.Context(), requireEngines(t).program("python"), "examples/python/"+program,
				"--server", addr, "--ask-timeout", "60", "Why is the sky blue?", "Why is the sky blue?"))
			require.Equal(t, 2, strings.Count(out, "8 tokens"), out)
		}
	})
}

// If the server or the engine core of vllm-rs is killed under load, no call for token ids fails, and all outputs are those
// of an undisturbed run.
func TestNoCallFailsWithVLLMRS(t *testing.T) {
	trace := conversations(16, 30)
	want := outputs(t, play(t.Context(), trace, 8, viaInference(dial(t, target(launch(t, 2, setup{rust: true}))))))
	for _, tt := range []struct {
		name   string
		strike func(e *engine)
	}{
		{"its server is killed", (*engine).killServer},
		{"its engine core is killed", (*engine).killCores},
	} {
		t.Run(tt.name, func(t *testing.T) {
			engines := launch(t, 2, setup{rust: true})
			ask := viaInference(dial(t, target(engines)))
			var began, moved atomic.Int64
			played := play(t.Context(), trace, 8, func(ctx context.Context, q request) answer {
				if began.Add(1) == 30 {
					tt.strike(busy(ctx, engines))
				}
				a := ask(ctx, q)
				if a.Attempts > 1 {
					moved.Add(1)
				}
				return a
			})
			require.Equal(t, want, outputs(t, played))
			t.Logf("%d calls, %d of them went on elsewhere", began.Load(), moved.Load())
		})
	}
}
