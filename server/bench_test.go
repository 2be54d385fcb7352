package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func manyReplicas(n int) string {
	var b strings.Builder
	b.WriteString("load_interval: 100ms\nmax_reservations: 1000000\ndeployments:\n  chat:\n    replicas:\n")
	for i := range n {
		fmt.Fprintf(&b, "    - {address: \"10.0.%d.%d:1\"}\n", i/256, i%256)
	}
	return b.String()
}

// echo is a method that gets bytes and answers with as many. It measures what gRPC and the messages cost.
func echo(answer *warmpathv1.ChooseReplicaResponse) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: "echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return answer, decode(new(warmpathv1.ChooseReplicaRequest))
		},
	}}}
}

// events sends the deployment the events of 16 engines that each prefill 12,000 tokens a second, until the benchmark
// ends: every 10 ms one chain of 8 blocks from each, now and then with a superblock.
func events(b *testing.B, d *deployment) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	h := d.hosted.Load()
	ids := h.router.View().Replicas()
	go func() {
		defer close(ended)
		t := time.NewTicker(10 * time.Millisecond)
		defer t.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			for _, r := range ids {
				blocks := make([]uint64, 8)
				for i := range blocks {
					blocks[i] = rand.Uint64()
				}
				changes := []policy.CacheChange{{Replica: r.ID, BlockTokens: 16, Stored: blocks}}
				if n%4 == 0 {
					changes = append(changes, policy.CacheChange{Replica: r.ID, BlockTokens: 16, Coarse: true, Stored: blocks[7:]})
				}
				h.changed(changes)
			}
		}
	}()
	b.Cleanup(func() { cancel(); <-ended })
}

// timed runs calls in parallel, and reports their median and 99th percentile next to the throughput.
func timed(b *testing.B, call func(i int) error) {
	var mu sync.Mutex // guards all
	var all []time.Duration
	b.RunParallel(func(p *testing.PB) {
		var own []time.Duration
		for i := 0; p.Next(); i++ {
			began := time.Now()
			if err := call(i); err != nil {
				b.Error(err)
			}
			own = append(own, time.Since(began))
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, own...)
	})
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds()), "p99-ns")
}

// 16 replicas, 512 hashes a request, an index that holds the prompts, KV events arriving; next to an echo of the same
// request.
func BenchmarkChoose(b *testing.B) {
	c := parse(b, manyReplicas(16))
	s, err := New(c, Options{Logger: discard})
	require.NoError(b, err)
	canned, err := services{Server: s}.ChooseReplica(b.Context(), &warmpathv1.ChooseReplicaRequest{})
	require.NoError(b, err)
	s.grpc.RegisterService(echo(canned), nil)
	f := serveFixture(b, s)
	requests := make([]*warmpathv1.ChooseReplicaRequest, 64)
	for i := range requests {
		k := hashed(512, 16, 0)
		for j := range k.GetBlockHashes().Hashes {
			k.GetBlockHashes().Hashes[j] = rand.Uint64()
		}
		requests[i] = &warmpathv1.ChooseReplicaRequest{Key: k}
		f.choose(b, requests[i])
	}
	events(b, f.deployment("chat"))
	b.Run("echo", func(b *testing.B) {
		timed(b, func(i int) error {
			return f.conn.Invoke(context.Background(), "/echo/Echo", requests[i%64], new(warmpathv1.ChooseReplicaResponse))
		})
	})
	b.Run("unary", func(b *testing.B) {
		timed(b, func(i int) error {
			_, err := f.pb.ChooseReplica(context.Background(), requests[i%64])
			return err
		})
	})
	b.Run("stream", func(b *testing.B) { benchStream(b, f, requests) })
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			if _, err := (services{Server: s}).ChooseReplica(context.Background(), requests[i%64]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// benchStream has 64 requests under way on one stream.
func benchStream(b *testing.B, f *fixture, requests []*warmpathv1.ChooseReplicaRequest) {
	stream, err := f.pb.ChooseReplicas(b.Context())
	require.NoError(b, err)
	window := make(chan struct{}, 64)
	sent := make(chan error, 1)
	b.ResetTimer()
	go func() {
		for i := range b.N {
			window <- struct{}{}
			if err := stream.Send(&warmpathv1.ChooseReplicasRequest{Number: uint64(i), Choose: requests[i%64]}); err != nil {
				sent <- err
				return
			}
		}
		sent <- stream.CloseSend()
	}()
	for range b.N {
		m, err := stream.Recv()
		require.NoError(b, err)
		require.NotNil(b, m.GetChosen())
		<-window
	}
	require.NoError(b, <-sent)
}

// One interval with 1,000 replicas and 100 watchers, all of whose loads have changed: the server's cost to add up
// and to write, without the sockets.
func BenchmarkBroadcast(b *testing.B) {
	for _, replicas := range []int{16, 1000} {
		b.Run(fmt.Sprintf("replicas=%d/watchers=100", replicas), func(b *testing.B) {
			now := newClock()
			c := parse(b, manyReplicas(replicas))
			d := deploy(b, c, "chat", now.now)
			defer d.close()
			var err error
			watchers := make([]*watcher, 100)
			for i := range watchers {
				watchers[i], err = d.watch(unrestricted(), &warmpathv1.WatchStart{ClientId: fmt.Sprint(i), Load: true})
				require.NoError(b, err)
				watchers[i].news()
			}
			d.tick(now.now())
			written, buffer, number := 0, []byte(nil), uint64(0)
			b.ResetTimer()
			for range b.N {
				number++
				for _, w := range watchers {
					r := &warmpathv1.ReservationReport{Number: number, Loads: new(warmpathv1.Loads)}
					for range max(replicas/100, 1) {
						appendLoad(r.Loads, 1+rand.Uint32N(uint32(replicas)), replicaLoad{rand.Int64N(8), rand.Int64N(30_000)})
					}
					require.NoError(b, w.reported(r))
				}
				now.advance(100 * time.Millisecond)
				d.tick(now.now())
				for _, w := range watchers {
					all, _, _ := w.news()
					for _, m := range all {
						buffer, err = proto.MarshalOptions{}.MarshalAppend(buffer[:0], m)
						require.NoError(b, err)
						written += len(buffer)
					}
				}
			}
			b.ReportMetric(float64(written)/float64(b.N)/float64(len(watchers)), "B/watcher")
		})
	}
}

// BenchmarkExpire is the end of an interval for leases of which none is due.
func BenchmarkExpire(b *testing.B) {
	const held = 50_000
	f := start(b, quiet)
	service := services{Server: f.Server}
	for range held {
		_, err := service.ChooseReplica(b.Context(), &warmpathv1.ChooseReplicaRequest{Mode: reserve})
		require.NoError(b, err)
	}
	leases := &f.deployment("chat").picks.leases
	for b.Loop() {
		leases.expire(f.Server.now())
	}
	require.Equal(b, held, leases.held())
}
