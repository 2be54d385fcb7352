package tests

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

// BenchmarkRPC compares whole RPCs through warmpath with gRPC's round_robin: the
// same replicas, the same messages, in turns of rpcTurn, and reports the median
// of the ratios of throughput over rpcPairs pairs.
//
//	go test ./tests -run '^$' -bench RPC -benchtime 1x
func BenchmarkRPC(b *testing.B) {
	rs := replicas(b, 8)
	plain, err := grpc.NewClient(target(rs...), insecureOption(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`))
	require.NoError(b, err)
	defer func() { require.NoError(b, plain.Close()) }()
	warm := map[string]*grpc.ClientConn{}
	for _, p := range []string{"kv_aware", "round_robin", "power_of_two_choices"} {
		warm[p] = dial(b, target(rs...), client.WithConfig(config(`{"`+p+`":{}}`)))
		connected(b, warm[p], rs)
	}
	connectedPlain(b, plain, rs)
	for _, kind := range []string{"unary", "stream"} {
		for _, size := range []int{128, 32 << 10} {
			for _, p := range []string{"kv_aware", "round_robin", "power_of_two_choices"} {
				b.Run(fmt.Sprintf("%s/%dB/%s", kind, size, p), func(b *testing.B) {
					for b.Loop() {
						comparePairs(b, caller(plain, kind, size), caller(warm[p], kind, size))
					}
				})
			}
		}
	}
}

const (
	rpcPairs   = 11
	rpcTurn    = 400 * time.Millisecond
	rpcCallers = 64
)

func comparePairs(b *testing.B, plain, warm func() error) {
	ratios, rate := make([]float64, rpcPairs), 0.0
	for i := range ratios {
		var p, w float64
		if i%2 == 0 {
			p, w = throughput(b, plain), throughput(b, warm)
		} else {
			w, p = throughput(b, warm), throughput(b, plain)
		}
		ratios[i] = w / p
		rate += w / rpcPairs
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[rpcPairs/2], "x_round_robin")
	b.ReportMetric(ratios[rpcPairs-1], "best_x")
	b.ReportMetric(rate, "rpc/s")
}

// throughput is how many calls rpcCallers make in a second, measured over a turn.
func throughput(b *testing.B, call func() error) float64 {
	var calls atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	end := start.Add(rpcTurn)
	for range rpcCallers {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(calls.Load()) / time.Since(start).Seconds()
}

// caller calls with one of 64 prompts: a warm fleet.
func caller(cc *grpc.ClientConn, kind string, size int) func() error {
	stub := testpb.NewTestServiceClient(cc)
	texts := make([][]byte, 64)
	for i := range texts {
		raw := make([]byte, size/2)
		_, _ = rand.Read(raw)
		texts[i] = []byte(hex.EncodeToString(raw))
	}
	var next atomic.Uint64
	if kind == "unary" {
		return func() error {
			text := texts[next.Add(1)%uint64(len(texts))]
			_, err := stub.UnaryCall(context.Background(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: text}})
			return err
		}
	}
	return func() error {
		text := texts[next.Add(1)%uint64(len(texts))]
		n, err := read(stub.StreamingOutputCall(context.Background(), &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: text}}))
		if err == nil && n != 1 {
			err = fmt.Errorf("%d messages", n)
		}
		return err
	}
}

func connectedPlain(b *testing.B, cc *grpc.ClientConn, rs []*replica) {
	stub := testpb.NewTestServiceClient(cc)
	seen := map[string]bool{}
	eventually(b, "all connections", func() bool {
		reply, err := stub.UnaryCall(deadline(b), simple(""))
		require.NoError(b, err)
		seen[reply.Username] = true
		return len(seen) == len(rs)
	})
}
