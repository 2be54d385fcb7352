package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// asReplica has the test's program be a replica that answers with what it gets.
const asReplica = "WARMPATH_TEST_AS_REPLICA"

type echo struct {
	testpb.UnimplementedTestServiceServer
}

func (echo) UnaryCall(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: q.GetPayload()}, nil
}

// echoes serves until the process is killed.
func echoes() {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("serves on", lis.Addr())
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, echo{})
	panic(s.Serve(lis))
}

// child starts a process of the test's program, and returns the address at the end of its first line.
func child(t testing.TB, env string, args ...string) (address string, pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env+"=1"), os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line[strings.LastIndex(line, " "):]), cmd.Process.Pid
}

// BenchmarkBesideDirect compares unary calls of 128 bytes through the proxy with a direct connection, in turns: client,
// proxy and replica are three processes. It reports the median of the ratios of throughput; the ratio of the processor
// time of all three for a call, which other programs on the machine affect less; and by how much the p99 is longer at
// half of the proxy's throughput, in the median.
//
//	go test ./cmd/warmpath -run '^$' -bench BesideDirect -benchtime 1x -cpu 2
func BenchmarkBesideDirect(b *testing.B) {
	replica, first := child(b, asReplica)
	through, second := child(b, asCommand, "proxy", "--listen", "127.0.0.1:0", "--target", "warmpath:///"+replica)
	dial := func(at string) testpb.TestServiceClient {
		cc, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, cc.Close()) })
		return testpb.NewTestServiceClient(cc)
	}
	ends := [2]testpb.TestServiceClient{dial(replica), dial(through)}
	for b.Loop() {
		var ratios, rates, added, direct []float64
		var calls, processor [2]float64
		for i := range benchTurns {
			var rate [2]float64
			for k := range ends {
				end := (i + k) % 2
				before := processorTime(b, os.Getpid(), first, second)
				rate[end], _ = unaryCalls(b, ends[end], 0)
				processor[end] += processorTime(b, os.Getpid(), first, second) - before
				calls[end] += rate[end]
			}
			ratios, rates = append(ratios, rate[1]/rate[0]), append(rates, rate[1])
		}
		half := median(rates) / 2
		for i := range benchTurns {
			var p99 [2]time.Duration
			for k := range ends {
				end := (i + k) % 2
				_, p99[end] = unaryCalls(b, ends[end], half)
			}
			added = append(added, float64(p99[1]-p99[0])/float64(time.Millisecond))
			direct = append(direct, float64(p99[0])/float64(time.Millisecond))
		}
		b.ReportMetric(median(ratios), "x_direct")
		b.ReportMetric(processor[0]/calls[0]*calls[1]/processor[1], "x_direct_by_processor_time")
		b.ReportMetric(median(rates), "calls/s")
		b.ReportMetric(median(added), "p99_added_ms")
		b.ReportMetric(median(direct), "p99_direct_ms")
	}
}

// processorTime is what processes have used, in the ticks of /proc.
func processorTime(b *testing.B, pids ...int) (ticks float64) {
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(b, err)
		const user, system = 11, 12 // after the name
		words := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		for _, i := range []int{user, system} {
			n, err := strconv.Atoi(words[i])
			require.NoError(b, err)
			ticks += float64(n)
		}
	}
	return ticks
}

const (
	benchTurns   = 11
	benchTurn    = 400 * time.Millisecond
	benchCallers = 64
)

// unaryCalls makes calls for a turn, as many as go or so many a second, and returns how many a second those were and
// how long the slowest of a hundred took.
func unaryCalls(b *testing.B, stub testpb.TestServiceClient, rate float64) (float64, time.Duration) {
	took := make([][]time.Duration, benchCallers)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range took {
		wg.Go(func() {
			q := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 128)}}
			every := time.Duration(0)
			if rate > 0 {
				every = time.Duration(benchCallers / rate * float64(time.Second))
			}
			for next := start.Add(every * time.Duration(i) / benchCallers); ; next = next.Add(every) {
				time.Sleep(time.Until(next))
				began := time.Now()
				if began.Sub(start) > benchTurn {
					return
				}
				if _, err := stub.UnaryCall(context.Background(), q); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	wg.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	if len(all) == 0 {
		b.Fatal("no call was made")
	}
	return float64(len(all)) / time.Since(start).Seconds(), all[len(all)*99/100]
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }
