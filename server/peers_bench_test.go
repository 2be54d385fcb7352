package server

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// BenchmarkCluster is a second of virtual time of 8 servers with 1,000 clients and 200 replicas: each client's load of
// a replica changes in every interval, a tenth of them report a route of 8 superblocks, and every replica sends a
// heartbeat.
func BenchmarkCluster(b *testing.B) {
	const servers, clients, replicas = 8, 1000, 200
	var config strings.Builder
	config.WriteString("load_interval: 10s\ndeployments:\n  chat:\n    policy: {kv_aware: {}}\n    register: true\n    replicas:\n")
	for i := range replicas {
		fmt.Fprintf(&config, "    - {id: engine-%d, address: \"10.0.%d.%d:1\"}\n", i, i/100, i%100)
	}
	c := newCluster(b, servers, config.String())
	rnd := rand.New(rand.NewPCG(1, 2))
	watchers := make([]*watcher, clients)
	for i := range watchers {
		watchers[i] = c.client(i%servers, fmt.Sprint("client", i))
	}
	c.ticks(25)
	number, hash := uint64(0), uint64(0)
	second := func() {
		for i := range replicas {
			register(b, c.servers[i%servers], fmt.Sprintf("10.0.%d.%d:1", i/100, i%100))
		}
		for range 10 {
			number++
			for i, w := range watchers {
				w.holds(b, number, map[uint32]replicaLoad{uint32(1 + rnd.IntN(replicas)): {3, 4000}})
				if i%10 == int(number%10) {
					hash += 8
					route := &warmpathv1.Route{Replica: uint32(1 + rnd.IntN(replicas)), Superblocks: []uint64{1, 2, 3, 4, 5, 6, hash, hash + 1}}
					_ = w.routed(&warmpathv1.RouteReport{Routes: []*warmpathv1.Route{route}})
				}
			}
			c.tick(nothingLost)
		}
	}
	second()
	sent, used := c.servers[0].peers.sentBytes, processor()
	received := c.servers[0].peers.receivedBytes
	b.ResetTimer()
	for range b.N {
		second()
	}
	b.ReportMetric(float64(c.servers[0].peers.sentBytes-sent)/float64(b.N), "sent-B/s")
	b.ReportMetric(float64(c.servers[0].peers.receivedBytes-received)/float64(b.N), "received-B/s")
	b.ReportMetric(float64((processor()-used).Microseconds())/1000/float64(b.N)/servers, "cpu-ms/s")
}

// processor is the processor time of this process.
func processor() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
