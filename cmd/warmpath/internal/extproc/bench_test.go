package extproc_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
)

// constant answers every request with one endpoint.
type constant struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (constant) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	const at = "10.0.0.1:8000"
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		var all []*extprocv3.ProcessingResponse
		switch r := m.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestBody:
			in := structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"x-gateway-destination-endpoint": structpb.NewStringValue(at)}})
			all = []*extprocv3.ProcessingResponse{{
				Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
					ClearRouteCache: true,
					HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{
						Header: header("x-gateway-destination-endpoint", at),
					}}},
				}}},
				DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": in}},
			}, {Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: same(r.RequestBody)}}}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			all = []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: new(extprocv3.HeadersResponse)}}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			all = []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: same(r.ResponseBody)}}}
		}
		for _, a := range all {
			err = stream.Send(a)
		}
		if err != nil {
			return err
		}
	}
}

func same(b *extprocv3.HttpBody) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b.GetBody(), EndOfStream: b.GetEndOfStream()},
		},
	}}}
}

// request makes one request of a gateway.
func request(ctx context.Context, c extprocv3.ExternalProcessorClient, head, body, answer, answered *extprocv3.ProcessingRequest) (pick time.Duration, err error) {
	began := time.Now()
	stream, err := c.Process(ctx)
	if err != nil {
		return 0, err
	}
	for _, step := range []struct {
		send, receive int
	}{{2, 2}, {1, 1}, {1, 1}} {
		for range step.send {
			if err := stream.Send(head); err != nil {
				return 0, err
			}
			head, body, answer, answered = body, answer, answered, nil
		}
		for range step.receive {
			m, err := stream.Recv()
			if err != nil {
				return 0, err
			}
			if m.GetImmediateResponse() != nil {
				return 0, fmt.Errorf("refused: %v", m)
			}
		}
		if pick == 0 {
			pick = time.Since(began)
		}
	}
	_ = stream.CloseSend()
	if _, err := stream.Recv(); err != io.EOF {
		return 0, fmt.Errorf("no end: %w", err)
	}
	return pick, nil
}

// processor is the processor time of this process so far.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBesideConstant compares requests with bodies of 8 KB at the endpoint and at a server with a constant
// answer, in alternating rounds. share is the median ratio of the endpoint's requests/s to the other server's, since
// other work on the machine disturbs some rounds. added-p99 is the additional time of the pick.
func BenchmarkBesideConstant(b *testing.B) {
	for _, clients := range []int{1, 16} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) { besideConstant(b, clients) })
	}
}

func besideConstant(b *testing.B, clients int) {
	p := startPicker(b, strings.Replace(fleet, "10ms", "100ms", 1), extproc.Options{Deployment: "chat"}, nil)
	s := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(s, constant{})
	conn, ended := listen(b, s.Serve)
	servers := []extprocv3.ExternalProcessorClient{extprocv3.NewExternalProcessorClient(conn), p}

	h := chatHeaders(":authority", "models.example.com", ":scheme", "https", "user-agent", "openai-python", "accept", "*/*",
		"x-request-id", "3e5c2f9e-5f5f-4b8f-a2c8-66e1f0c2e3aa", "x-forwarded-proto", "https", "content-length", "8192")
	head := &extprocv3.ProcessingRequest{
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: duplex, ResponseBodyMode: duplex},
		Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(h)}},
	}
	bodies := make([]*extprocv3.ProcessingRequest, 64)
	for i := range bodies {
		text := prompt(fmt.Sprintf("conversation %d: %s", i, strings.Repeat("words of a prompt ", 448)))
		bodies[i] = &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: true},
		}}
	}
	answer := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(map[string]string{":status": "200", "content-type": "application/json"})},
	}}
	answered := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(`{"choices":[{"text":"ok"}],"usage":{"prompt_tokens":2000,"completion_tokens":1}}`), EndOfStream: true},
	}}
	var took [2][]time.Duration // of each round
	var picks [2][]time.Duration
	var cpu [2]time.Duration
	turn := func(which, n int) {
		busy := processor(b)
		defer func() { cpu[which] += processor(b) - busy }()
		var next atomic.Int64
		var mu sync.Mutex
		var done sync.WaitGroup
		began := time.Now()
		for range clients {
			done.Go(func() {
				var own []time.Duration
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					d, err := request(b.Context(), servers[which], head, bodies[i%int64(len(bodies))], answer, answered)
					if err != nil {
						b.Error(err)
						return
					}
					own = append(own, d)
				}
				mu.Lock()
				defer mu.Unlock()
				picks[which] = append(picks[which], own...)
			})
		}
		done.Wait()
		took[which] = append(took[which], time.Since(began))
	}
	const each = 100
	turn(0, 2*each)
	turn(1, 2*each)
	took, cpu, picks = [2][]time.Duration{}, [2]time.Duration{}, [2][]time.Duration{}
	b.ResetTimer()
	for left := b.N; left > 0; left -= each {
		turn(0, min(left, each))
		turn(1, min(left, each))
	}
	b.StopTimer()
	shares := make([]float64, len(took[0]))
	for i := range shares {
		shares[i] = float64(took[0][i]) / float64(took[1][i])
	}
	slices.Sort(shares)
	slices.Sort(took[1])
	p99 := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)*99/100].Microseconds())
	}
	b.ReportMetric(shares[len(shares)/2], "share")
	b.ReportMetric(cpu[0].Seconds()/cpu[1].Seconds(), "cpu-share")
	b.ReportMetric(each/took[1][len(shares)/2].Seconds(), "requests/s")
	b.ReportMetric(p99(picks[0]), "constant-p99-us")
	b.ReportMetric(p99(picks[1])-p99(picks[0]), "added-p99-us")
	b.ReportMetric(0, "ns/op")
	s.Stop()
	require.NoError(b, conn.Close())
	require.NoError(b, <-ended)
}
