package real

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// vocabulary is the model's; the first three tokens are special.
const vocabulary = 4096

// tokens returns n random ordinary tokens.
func tokens(r *rand.Rand, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = 3 + r.Uint32N(vocabulary-3)
	}
	return out
}

// conversation is what users say; a turn's prompt is all that was said before it, answers included.
type conversation struct {
	system []uint32
	turns  [][]uint32
}

// conversations returns n conversations of five turns over four system prompts.
func conversations(n int, seed uint64) []conversation {
	r := rand.New(rand.NewPCG(seed, seed))
	var systems [4][]uint32
	for i := range systems {
		systems[i] = tokens(r, 100+100*i)
	}
	all := make([]conversation, n)
	for i := range all {
		all[i].system = systems[i%len(systems)]
		for range 5 {
			all[i].turns = append(all[i].turns, tokens(r, 150+r.IntN(200)))
		}
	}
	return all
}

// request is one call's input.
type request struct {
	prompt  []uint32
	bound   uint32 // of output tokens
	salt    string // vllm.Inference only
	adapter string // vllm.Inference only
}

// answer is what a call returned.
type answer struct {
	client.Decision
	request
	output []uint32
	cached int // prompt tokens found in the cache, as the engine's messages say
	err    error
	first  time.Duration // until the first message
}

// generate makes one call at temperature 0.
type generate func(ctx context.Context, q request) answer

// viaEngine calls VllmEngine.
func viaEngine(conn grpc.ClientConnInterface) generate {
	stub := enginepb.NewVllmEngineClient(conn)
	return func(ctx context.Context, q request) (a answer) {
		a.request = q
		begin := time.Now()
		stream, err := stub.Generate(client.WithDecision(ctx, &a.Decision), &enginepb.GenerateRequest{
			RequestId:      newID(),
			Input:          &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: q.prompt}},
			SamplingParams: &enginepb.SamplingParams{Temperature: new(float32(0)), MaxTokens: &q.bound},
			Stream:         true,
		})
		for err == nil {
			var m *enginepb.GenerateResponse
			if m, err = stream.Recv(); err == nil {
				if a.first == 0 {
					a.first = time.Since(begin)
				}
				a.output = append(a.output, m.GetChunk().GetTokenIds()...)
				a.cached = max(a.cached, int(m.GetChunk().GetCachedTokens()), int(m.GetComplete().GetCachedTokens()))
			}
		}
		if !errors.Is(err, io.EOF) {
			a.err = err
		}
		return a
	}
}

var ids struct {
	sync.Mutex
	n int
}

func newID() string {
	ids.Lock()
	defer ids.Unlock()
	ids.n++
	return fmt.Sprint("real-", ids.n)
}

// outputTokens bounds the output of a turn.
const outputTokens = 24

// play holds conversations, so many calls at once: the first turns of all, then the second ones, and so on, in an order
// that changes from turn to turn. It returns each conversation's answers; an error ends its conversation.
func play(ctx context.Context, all []conversation, atOnce int, ask generate) [][]answer {
	answers, prompts := make([][]answer, len(all)), make([][]uint32, len(all))
	free := make(chan struct{}, atOnce)
	for turn := range all[0].turns {
		var wg sync.WaitGroup
		for _, i := range rand.New(rand.NewPCG(uint64(turn), 0)).Perm(len(all)) {
			if turn == 0 {
				prompts[i] = all[i].system
			} else if answers[i][len(answers[i])-1].err != nil {
				continue
			}
			free <- struct{}{}
			wg.Go(func() {
				defer func() { <-free }()
				a := ask(ctx, request{prompt: join(prompts[i], all[i].turns[turn]), bound: outputTokens})
				answers[i], prompts[i] = append(answers[i], a), join(a.prompt, a.output)
			})
		}
		wg.Wait()
	}
	return answers
}

// join returns a and b in a slice of their own.
func join(a, b []uint32) []uint32 {
	return append(append(make([]uint32, 0, len(a)+len(b)), a...), b...)
}

// outputs returns the tokens of all answers, and fails where a call has failed.
func outputs(t testing.TB, played [][]answer) (all [][][]uint32) {
	t.Helper()
	for i, c := range played {
		all = append(all, nil)
		for turn, a := range c {
			require.NoError(t, a.err, "conversation %d, turn %d, %+v", i, turn, a.Decision)
			all[i] = append(all[i], a.output)
		}
	}
	return all
}

// cachedOf returns the share of prompt tokens that the engines found in their caches, by their own count.
func cachedOf(t testing.TB, played [][]answer) float64 {
	t.Helper()
	prompt, cached := 0, 0
	for _, c := range played {
		for _, a := range c {
			require.NoError(t, a.err)
			prompt, cached = prompt+len(a.prompt), cached+a.cached
		}
	}
	return float64(cached) / float64(prompt)
}

// target names engines as replicas.
func target(engines []*engine) string {
	var all []string
	for _, e := range engines {
		all = append(all, e.addr)
	}
	return "warmpath:///" + strings.Join(all, ",")
}

// dial opens a channel of client.New that the test closes.
func dial(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := client.New(target, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// meter reads a channel's metrics.
type meter struct {
	reader *sdkmetric.ManualReader
	option grpc.DialOption
}

func newMeter(t testing.TB) *meter {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	return &meter{reader: reader, option: client.WithMeterProvider(provider)}
}

// ofReplica returns the sum of an integer metric's points of a replica; "" = of all of them.
func (m *meter) ofReplica(t testing.TB, name, replica string) (sum int64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(context.Background(), &all))
	add := func(points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			if id, _ := p.Attributes.Value("warmpath.replica"); replica == "" || id.AsString() == replica {
				sum += p.Value
			}
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name != name {
				continue
			}
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				add(data.DataPoints)
			case metricdata.Gauge[int64]:
				add(data.DataPoints)
			}
		}
	}
	return sum
}
