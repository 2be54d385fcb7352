package tests

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/race"
	"github.com/warmpath/warmpath/lab/enginesim"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/workload"
)

// A replica is killed while it serves 1,000 streams, each at another token. All end with the tokens of an undisturbed
// stream, in order.
func TestStreamsOutliveTheirReplica(t *testing.T) {
	streams := race.Of(1000, 200)
	random := rand.New(rand.NewPCG(17, 3))
	moved := 0
	for round := 0; moved < streams && !t.Failed(); round++ {
		moved += storm(t, random, round)
	}
	t.Logf("%d streams went on elsewhere", moved)
}

// storm runs streams on two engines, and kills the engine of a given stream at a given token. It returns how many
// streams were resumed.
func storm(t *testing.T, random *rand.Rand, round int) (moved int) {
	streams := race.Of(250, 75)
	engines, target := make(map[string]*grpcserver.Server), "warmpath:///"
	for i := range 2 {
		s := startEngine(t, grpcserver.Config{Speed: 20, Engine: enginesim.Config{MaxSequences: streams, KVTokens: 1 << 20}})
		if i > 0 {
			target += ","
		}
		target += s.Addr().String()
		engines[s.Addr().String()] = s
		defer s.Kill()
	}
	m := newMeter(t)
	cc := dial(t, target, client.WithConfig(resuming), m.option)
	for at := range engines {
		eventually(t, "connected", func() bool {
			return receive(client.WithPin(deadline(t), at), cc, engineStream("x", 1), nothing).err == io.EOF
		})
	}
	ctx, end := deadline(t), (*grpcserver.Server).Kill
	if round%2 > 0 { // it drains, without time to finish: GOAWAY, then the connections are closed
		end = func(s *grpcserver.Server) {
			now, cancel := context.WithCancel(ctx)
			cancel()
			s.Stop(now)
		}
	}
	chosen, at := random.IntN(streams), 1+random.IntN(40)
	kinds := []string{"VllmEngine", "Inference", "SglangScheduler"}
	var all sync.WaitGroup
	decisions := make([]client.Decision, streams)
	for i := range streams {
		most := uint32(60 + random.IntN(100))
		all.Go(func() {
			id, d := fmt.Sprintf("%d-%d", round, i), &decisions[i]
			var ids []uint32
			got := receive(client.WithDecision(ctx, d), cc, streamsOf[kinds[i%len(kinds)]](id, most), func(m proto.Message) {
				ids = append(ids, newTokens(m)...)
				if i == chosen && len(ids) == at {
					go end(engines[d.Address])
				}
			})
			if got.err != io.EOF || !checkOutput(id, ids, int(most)) || d.Usage.OutputTokens != int(most) || d.Usage.PromptTokens != 40 {
				t.Errorf("%s: %v, %d of %d tokens, %+v", id, got.err, len(ids), most, *d)
			}
		})
	}
	all.Wait()
	for _, d := range decisions {
		moved += d.Resumed
	}
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
	return moved
}

// newTokens are the token ids that a message adds to the output.
func newTokens(m proto.Message) []uint32 {
	switch m := m.(type) {
	case *enginepb.GenerateResponse:
		return m.GetChunk().GetTokenIds()
	case *sglangpb.GenerateResponse:
		return m.GetChunk().GetTokenIds()
	case *vllmpb.GenerateResponse:
		return m.GetOutputs().GetTokenIds()
	}
	return nil
}

// checkOutput reports whether an output has all tokens of a request, in order.
func checkOutput(id string, ids []uint32, most int) bool {
	for i, t := range ids {
		if t != workload.Token(workload.OutputSeed(id), i) {
			return false
		}
	}
	return len(ids) == most
}
