package tests

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// BenchmarkCost compares the processor time of the client for a call with that of plain gRPC's round_robin: the whole
// process, without the replicas, which are in another one. The two take turns; the ratio is the median of the pairs.
//
//	go test ./tests -run '^$' -bench '^BenchmarkCost$' -benchtime 15x
func BenchmarkCost(b *testing.B) {
	addresses := costReplicas(b)
	plain, err := grpc.NewClient("warmpath:///"+addresses, insecureOption(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, plain.Close()) })
	for _, kind := range []struct {
		name  string
		calls int // a turn
		call  func(*grpc.ClientConn, int) error
	}{
		{"unary/128B", 4000, costUnary(128)},
		{"unary/32KiB", 2000, costUnary(32 << 10)},
		{"stream/1", 3000, costStream(1)},
		{"stream/500", 60, costStream(500)},
	} {
		turn := func(conn *grpc.ClientConn, calls int) float64 {
			var next atomic.Int64
			var callers sync.WaitGroup
			runtime.GC()
			from := processorTime(b)
			for range 16 {
				callers.Go(func() {
					for n := int(next.Add(1)); n <= calls; n = int(next.Add(1)) {
						if err := kind.call(conn, n); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			callers.Wait()
			return float64((processorTime(b) - from).Nanoseconds()) / 1000 / float64(calls)
		}
		for _, p := range []string{"kv_aware", "power_of_two_choices", "round_robin"} {
			b.Run(kind.name+"/"+p, func(b *testing.B) {
				conn := dial(b, "warmpath:///"+addresses, client.WithConfig(config(`{"`+p+`":{}}`)))
				turn(plain, kind.calls/2)
				turn(conn, kind.calls/2)
				var ratios, spent, spentPlain []float64 // the latter in µs a call
				for b.Loop() {
					var w, p float64
					if len(ratios)%2 == 0 {
						p, w = turn(plain, kind.calls), turn(conn, kind.calls)
					} else {
						w, p = turn(conn, kind.calls), turn(plain, kind.calls)
					}
					ratios, spent, spentPlain = append(ratios, w/p), append(spent, w), append(spentPlain, p)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(ratios), "x_plain")
				b.ReportMetric(median(spent), "µs/call")
				b.ReportMetric(median(spentPlain), "µs/plain")
			})
		}
	}
}

// costUnary makes a call with one of 64 prompts.
func costUnary(size int) func(*grpc.ClientConn, int) error {
	prompts := make([]*testpb.SimpleRequest, 64)
	for i := range prompts {
		prompts[i] = simple(strings.Repeat(fmt.Sprintf("%04d", i), size/4))
	}
	return func(conn *grpc.ClientConn, n int) error {
		_, err := testpb.NewTestServiceClient(conn).UnaryCall(context.Background(), prompts[n%len(prompts)], grpc.WaitForReady(true))
		return err
	}
}

// costStream reads a stream of so many messages from an engine.
func costStream(messages uint32) func(*grpc.ClientConn, int) error {
	return func(conn *grpc.ClientConn, n int) error {
		q := engineStream(fmt.Sprint(n), messages-1) // and the last one
		stream, err := enginepb.NewVllmEngineClient(conn).Generate(context.Background(), q, grpc.WaitForReady(true))
		for err == nil {
			_, err = stream.Recv()
		}
		if err == io.EOF {
			err = nil
		}
		return err
	}
}

// costServers is the variable that has the test binary serve replicas.
const costServers = "WARMPATH_TEST_SERVE"

// costReplicas starts eight replicas in another process, and returns their addresses.
func costReplicas(b *testing.B) string {
	program, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), costServers+"=8")
	cmd.Stderr = os.Stderr
	stop, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, stop.Close())
		require.NoError(b, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return strings.TrimSpace(line)
}

// serveCost serves replicas until the standard input ends. It prints their addresses.
func serveCost(replicas string) {
	var addresses []string
	var n int
	_, _ = fmt.Sscan(replicas, &n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		s := grpc.NewServer()
		testpb.RegisterTestServiceServer(s, &replica{})
		enginepb.RegisterVllmEngineServer(s, steady{})
		go func() { _ = s.Serve(l) }()
		addresses = append(addresses, l.Addr().String())
	}
	fmt.Println(strings.Join(addresses, ","))
	_, _ = io.Copy(io.Discard, os.Stdin)
}
