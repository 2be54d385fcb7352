package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/race"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/workload"
)

// Sizes of the requests that are split.
const (
	killPrompt = 2000
	killOutput = 8
	// killIdle is the number of requests under way at each engine that serves whole requests, so that a prefill there
	// is costly.
	killIdle = 8
)

// A killFlow is a method whose requests are sent in two legs.
type killFlow struct {
	name      string
	connector grpcserver.Connector
	// whole is set if engines with a role serve whole requests too.
	whole bool
	send  func(ctx context.Context, cc *grpc.ClientConn, id string) (output []uint32, messages int, err error)
}

var killFlows = []killFlow{
	{"vllm.Inference", grpcserver.NIXL, true, sendInference},
	{"SglangScheduler", grpcserver.Rooms, false, sendSGLang},
}

func sendInference(ctx context.Context, cc *grpc.ClientConn, id string) ([]uint32, int, error) {
	stream, err := vllmpb.NewInferenceClient(cc).GenerateStream(ctx, &vllmpb.GenerateRequest{
		RequestId: id, Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: killOutput},
		Prompt: &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: tokensOf("prompt of "+id, killPrompt)}},
	})
	return receiveAll(stream, err, func(m *vllmpb.GenerateResponse) []uint32 { return m.GetOutputs().GetTokenIds() })
}

func sendSGLang(ctx context.Context, cc *grpc.ClientConn, id string) ([]uint32, int, error) {
	stream, err := sglangpb.NewSglangSchedulerClient(cc).Generate(ctx, &sglangpb.GenerateRequest{
		RequestId: id, Stream: true, SamplingParams: &sglangpb.SamplingParams{MaxNewTokens: proto.Uint32(killOutput)},
		Tokenized: &sglangpb.TokenizedInput{InputIds: tokensOf("prompt of "+id, killPrompt)},
	})
	return receiveAll(stream, err, func(m *sglangpb.GenerateResponse) []uint32 { return m.GetChunk().GetTokenIds() })
}

// receiveAll reads a stream to its end.
func receiveAll[M any](
	stream grpc.ServerStreamingClient[M], err error, tokens func(*M) []uint32,
) (output []uint32, messages int, _ error) {
	for err == nil {
		var m *M
		if m, err = stream.Recv(); err == nil {
			messages++
			output = append(output, tokens(m)...)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return output, messages, err
}

// tokensOf are the first tokens of a unique text.
func tokensOf(name string, n int) []uint32 {
	seed, ids := workload.OutputSeed(name), make([]uint32, n)
	for i := range ids {
		ids[i] = workload.Token(seed, i)
	}
	return ids
}

// killMoments are the moments of a request at which engines are killed.
var killMoments = []killMoment{
	{"p has the headers", "p", new(stats.OutHeader), 1},
	{"p has the request", "p", new(stats.OutPayload), 1},
	{"p prefills", "p", new(stats.InHeader), 1},
	{"p has answered", "p", new(stats.InPayload), 1},
	{"the prefill leg has ended", "p", new(stats.End), 1},
	{"d has the headers", "d", new(stats.OutHeader), 1},
	{"d has the request", "d", new(stats.OutPayload), 1},
	{"the transfer", "d", new(stats.InHeader), 1},
	{"the first message", "d", new(stats.InPayload), 1},
	{"the third message", "d", new(stats.InPayload), 3},
}

// Engine processes get SIGKILL under load, at each moment of a request, and restart. No request is lost, except a
// stream whose decode engine dies after the first message when streams are not resumed.
func TestKilledEngines(t *testing.T) {
	all := []string{"p", "d", "pd"}
	for _, flow := range killFlows {
		for n, resume := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/resume %t", flow.name, resume), func(t *testing.T) {
				f := startKillFleet(t, flow, resume)
				stop := f.load(4)
				for i, m := range killMoments {
					for j, victims := range all {
						if i%2 == n && (!race.Enabled || (i/2+n)%len(all) == j) {
							f.killAt(m, victims)
						}
					}
				}
				stop()
				f.nothingReserved()
			})
		}
	}
}

// call sends a request and checks its result.
func (f *killFleet) call(id string) {
	ctx, cancel := context.WithTimeout(context.WithValue(f.t.Context(), killKey{}, new(killCall)), killWithin)
	defer cancel()
	var d client.Decision
	output, messages, err := f.flow.send(client.WithDecision(ctx, &d), f.cc, id)
	switch {
	case err == nil:
		if want := tokensOf(id, killOutput); !slices.Equal(output, want) {
			f.t.Errorf("request %s has the output %v, not %v", id, output, want)
		}
	case f.resume || messages == 0 || status.Code(err) != codes.Unavailable:
		f.t.Errorf("request %s, after %d messages: %v, %+v", id, messages, err, d)
	}
}
