package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A server that has just started, until 10,000 replicas are in its fleet: each sends a heartbeat a second, at a time of its
// own, over 100 connections, in which a figure changes. Meanwhile one client picks and another one reads the state.
// Replicas, clients and server share the machine, so cpu-s is of all of them.
func BenchmarkRestart(b *testing.B) {
	const replicas, connections = 10_000, 100
	for _, size := range []int{300, 4 << 10} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			var joined, picks, states []time.Duration
			used := processor()
			for range b.N {
				s, err := New(parse(b, "deployments: {chat: {register: true, replicas: [{id: fixed, address: 'f:1'}]}}"), Options{Logger: discard})
				require.NoError(b, err)
				f := serveFixture(b, s)
				ctx, cancel := context.WithCancel(context.Background())
				var all sync.WaitGroup
				var failed atomic.Pointer[error]
				conns := make([]*grpc.ClientConn, connections)
				for i := range conns {
					conns[i], err = grpc.NewClient(f.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
					require.NoError(b, err)
				}
				began := time.Now()
				for i, r := range adapted(replicas, size) {
					stub := warmpathv1.NewRoutingServiceClient(conns[i%connections])
					all.Go(func() {
						time.Sleep(rand.N(time.Second))
						beat := time.NewTicker(time.Second)
						defer beat.Stop()
						for {
							r.Stats = map[string]float64{"waiting": float64(rand.IntN(9))}
							if _, err := stub.Register(ctx, &warmpathv1.RegisterRequest{Replica: r}); err != nil {
								if ctx.Err() == nil {
									failed.Store(&err)
								}
								return
							}
							select {
							case <-beat.C:
							case <-ctx.Done():
								return
							}
						}
					})
				}
				var in atomic.Int64
				all.Go(func() {
					for ctx.Err() == nil {
						asked := time.Now()
						a, err := warmpathv1.NewStatusServiceClient(f.conn).GetStatus(ctx, new(warmpathv1.GetStatusRequest), grpc.MaxCallRecvMsgSize(1<<30))
						if err != nil {
							continue
						}
						states = append(states, time.Since(asked))
						if n := len(a.GetDeployments()[0].GetReplicas()); in.Swap(int64(n)) <= replicas && n > replicas {
							joined = append(joined, time.Since(began))
						}
						time.Sleep(100 * time.Millisecond)
					}
				})
				for in.Load() <= replicas && time.Since(began) < time.Minute && failed.Load() == nil {
					asked := time.Now()
					_, err := f.pb.ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{Mode: query})
					require.NoError(b, err)
					picks = append(picks, time.Since(asked))
					time.Sleep(time.Millisecond)
				}
				cancel()
				all.Wait()
				for _, c := range conns {
					require.NoError(b, c.Close())
				}
				if err := failed.Load(); err != nil {
					require.NoError(b, *err)
				}
			}
			b.ReportMetric((processor()-used).Seconds()/float64(b.N), "cpu-s")
			for name, took := range map[string][]time.Duration{"joined": joined, "pick": picks, "state": states} {
				slices.Sort(took)
				if len(took) > 0 {
					b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, name+"-p50-ms")
					b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, name+"-p99-ms")
					b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, name+"-max-ms")
				}
			}
		})
	}
}
