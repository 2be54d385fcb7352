package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
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
	"google.golang.org/grpc/mem"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/proxy"
)

// asReplica makes the test's program act as a replica that returns its requests.
const asReplica = "WARMPATH_TEST_AS_REPLICA"

// asFloor makes it pass calls on to the address that is its value.
const asFloor = "WARMPATH_TEST_AS_FLOOR"

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

// floor passes unary calls on to an address until the process is killed, without a pick: the cost of a proxy with
// gRPC's library and without the protos.
func floor(at string) {
	defer runtime.KeepAlive(make([]byte, proxy.Ballast))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("serves on", lis.Addr())
	cc, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(proxy.Codec{})))
	if err != nil {
		panic(err)
	}
	panic(grpc.NewServer(grpc.ForceServerCodecV2(proxy.Codec{}), grpc.UnknownServiceHandler(
		func(_ any, in grpc.ServerStream) error {
			var m mem.BufferSlice
			if err := in.RecvMsg(&m); err != nil {
				return err
			}
			method, _ := grpc.MethodFromServerStream(in)
			out, err := cc.NewStream(in.Context(), &grpc.StreamDesc{ServerStreams: true}, method)
			if err == nil {
				err = out.SendMsg(&m)
			}
			for err == nil {
				if err = out.RecvMsg(&m); err == nil {
					err = in.SendMsg(&m)
					m.Free()
				}
			}
			if err == io.EOF {
				return nil
			}
			return err
		},
	)).Serve(lis))
}

// child starts a process of the test's program, and returns the address at the end of its first line.
func child(t testing.TB, env, value string, args ...string) (address string, pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env+"="+value), os.Stderr
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

// BenchmarkBesideDirect compares unary calls of 128 bytes on a direct connection, through the floor and through the
// proxy, in alternating rounds. Client, proxy and replica are three processes. For floor and proxy it reports three
// figures. The first is the median ratio of throughput to the direct connection. The second is the ratio of the
// processor time of all processes for a call, which other programs affect less. The third is the median increase of
// the p99 at half of the proxy's throughput.
//
//	go test ./cmd/warmpath -run '^$' -bench BesideDirect -benchtime 1x -cpu 2
func BenchmarkBesideDirect(b *testing.B) {
	replica, served := child(b, asReplica, "1")
	passed, passes := child(b, asFloor, replica)
	through, proxies := child(b, asCommand, "1", "proxy", "--listen", "127.0.0.1:0", "--target", "warmpath:///"+replica)
	dial := func(at string) testpb.TestServiceClient {
		cc, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, cc.Close()) })
		return testpb.NewTestServiceClient(cc)
	}
	ends := [...]testpb.TestServiceClient{dial(replica), dial(passed), dial(through)}
	names := [len(ends)]string{"direct", "floor", "proxy"}
	for b.Loop() {
		var rates, ratios, tails, added [len(ends)][]float64
		var calls, processor [len(ends)]float64
		for i := range benchTurns {
			var rate [len(ends)]float64
			for k := range ends {
				end := (i + k) % len(ends)
				before := processorTime(b, os.Getpid(), served, passes, proxies)
				rate[end], _ = unaryCalls(b, ends[end], 0)
				processor[end] += processorTime(b, os.Getpid(), served, passes, proxies) - before
				calls[end] += rate[end]
			}
			for end := range ends {
				rates[end], ratios[end] = append(rates[end], rate[end]), append(ratios[end], rate[end]/rate[0])
			}
		}
		half := median(rates[len(ends)-1]) / 2
		for i := range benchTurns {
			var p99 [len(ends)]float64
			for k := range ends {
				end := (i + k) % len(ends)
				_, took := unaryCalls(b, ends[end], half)
				p99[end] = float64(took) / float64(time.Millisecond)
			}
			for end := range ends {
				tails[end], added[end] = append(tails[end], p99[end]), append(added[end], p99[end]-p99[0])
			}
		}
		for end, name := range names {
			b.ReportMetric(median(rates[end]), name+"_calls/s")
			b.ReportMetric(median(tails[end]), name+"_p99_ms")
			if end > 0 {
				b.ReportMetric(median(ratios[end]), name+"_x")
				b.ReportMetric(processor[0]/calls[0]*calls[end]/processor[end], name+"_x_by_processor_time")
				b.ReportMetric(median(added[end]), name+"_p99_added_ms")
			}
		}
	}
}

// processorTime is the processor time of processes, in the ticks of /proc.
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

// unaryCalls makes calls for a round, at full speed or at a rate per second. It returns their rate and their p99.
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
