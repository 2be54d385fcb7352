package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The time of an answer: without other load, and while another principal floods the server from four connections,
// with its own token and a rate of 1,000, or with a wrong token. Client, attacker and server share the machine.
func BenchmarkUnderAttack(b *testing.B) {
	f := start(b, strings.Replace(siege, "evils]", "evils], rate: 1000", 1))
	good := f.with(b, goodToken)
	for _, attack := range []struct{ name, token string }{{"alone", ""}, {"flood", evilToken}, {"wrong-token", "wrong-0123456789abc"}} {
		b.Run(attack.name, func(b *testing.B) {
			var sent atomic.Int64
			end := func() {}
			if attack.token != "" {
				end = flood(b, f, attack.token, &sent)
			}
			took := make([]time.Duration, 0, b.N)
			b.ResetTimer()
			for b.Loop() {
				began := time.Now()
				_, err := good.ChooseReplica(context.Background(), &warmpathv1.ChooseReplicaRequest{Deployment: "goods", Pinned: "c", Mode: query})
				took = append(took, time.Since(began))
				if err != nil {
					f.clock.advance(time.Second) // room for more
					f.tick("goods")
				}
			}
			b.StopTimer()
			end()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(sent.Load())/b.Elapsed().Seconds(), "attacks/s")
		})
	}
}

func flood(b *testing.B, f *fixture, token string, sent *atomic.Int64) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 4 {
		conn, err := grpc.NewClient(f.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(bearer(token)))
		require.NoError(b, err)
		pb := warmpathv1.NewRoutingServiceClient(conn)
		all.Go(func() {
			defer conn.Close()
			for ctx.Err() == nil {
				_, _ = pb.ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{Deployment: "shared", Mode: warmpathv1.PickMode_PICK_MODE_RESERVE})
				sent.Add(1)
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}
