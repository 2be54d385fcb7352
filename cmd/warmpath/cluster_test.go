package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/freeport"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/lab/workload"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A serverCluster is three look-aside servers, each in its own process, for a fleet of simulated engines with KV
// events.
type serverCluster struct {
	t       testing.TB
	options drive.Options
	configs []string // files
	listen  []string // ports
	servers []*drive.Process
	wires   []*natsWire // between each server and NATS
}

// clusterTime is the length of the conversations. The fault happens after a third of it, and the rest is measured.
const clusterTime = 99 * time.Second

// A natsWire is a TCP proxy to NATS. While it is cut, it silently holds everything.
type natsWire struct {
	lis  net.Listener
	gate sync.RWMutex // locked by a cut
	mend func()       // ends the cut, if there is one
}

func newNATSWire(t testing.TB, to string) *natsWire {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &natsWire{lis: lis, mend: func() {}}
	var all sync.WaitGroup
	done := make(chan struct{})
	carry := func(from, into net.Conn) {
		defer into.Close()
		b := make([]byte, 64<<10)
		for n, err := from.Read(b); err == nil; n, err = from.Read(b) {
			w.gate.RLock()
			_, err = into.Write(b[:n])
			w.gate.RUnlock()
			if err != nil {
				return
			}
		}
	}
	all.Go(func() {
		for {
			server, err := lis.Accept()
			if err != nil {
				return
			}
			nats, err := net.Dial("tcp", to)
			if err != nil {
				_ = server.Close()
				continue
			}
			all.Go(func() { carry(server, nats) })
			all.Go(func() { carry(nats, server) })
			all.Go(func() {
				<-done
				_ = server.Close()
				_ = nats.Close()
			})
		}
	})
	t.Cleanup(func() {
		w.mend()
		close(done)
		_ = lis.Close()
		all.Wait()
	})
	return w
}

func (w *natsWire) cut() {
	w.gate.Lock()
	w.mend = sync.OnceFunc(w.gate.Unlock)
}

// startCluster starts NATS and the servers.
func startCluster(t testing.TB, mode string, speed float64) *serverCluster {
	fleet, err := drive.StartFleet(t.Context(), 4, 0, grpcserver.Config{
		Engine: enginesim.Config{KVTokens: 60_000}, // full after a third of the conversations
		Speed:  speed, KVEvents: kvpublish.NewLog(0), KVHistory: true,
	})
	require.NoError(t, err)
	t.Cleanup(fleet.Kill)
	const n = 3
	c := &serverCluster{t: t, configs: make([]string, n), servers: make([]*drive.Process, n)}
	c.options = drive.Options{
		Clients: 6, Speed: speed, Seed: 1, WarmUp: clusterTime / 3, Replicas: drive.Replicas(fleet.Target()),
		TargetOf: func(client int) string {
			host := fmt.Sprintf("127.0.0.%d:", 1+client)
			return "warmpath://" + host + strings.Join(c.listen, ","+host) + "/live"
		},
	}
	// However fast the engines are, servers share their state every 50 ms: a shorter period is too much for a busy
	// machine.
	l := live{Options: drive.Options{Speed: 2}, engines: 4, deadline: time.Second / 5}
	nats, end, err := startNATS()
	require.NoError(t, err)
	t.Cleanup(end)
	for i := range n {
		all := l.serverConfig(mode, "kv_aware", c.options.Replicas)
		w := newNATSWire(t, nats)
		c.wires = append(c.wires, w)
		all.Cluster.NATS = &cluster.NATS{URL: "nats://" + w.lis.Addr().String()}
		config, err := json.Marshal(all)
		require.NoError(t, err)
		c.configs[i] = file(t, "server.yaml", string(config))
		port := strconv.Itoa(freeport.Find(1)[0])
		c.start(i, "0.0.0.0:"+port)
		c.listen = append(c.listen, port)
	}
	t.Cleanup(func() {
		for _, p := range c.servers {
			p.Kill()
		}
	})
	c.inSync(n - 1)
	return c
}

func (c *serverCluster) start(i int, listen string) {
	self, err := os.Executable()
	require.NoError(c.t, err)
	p, err := drive.StartProcess(c.t.Context(), exec.Command(self, "serve", "--config", c.configs[i], "--listen", listen))
	require.NoError(c.t, err)
	c.servers[i] = p
}

// state is a server's view of the cluster; nil = it does not answer.
func (c *serverCluster) state(i int) *warmpathv1.DeploymentStatus {
	cc, err := grpc.NewClient("127.0.0.1:"+c.listen[i], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(c.t, err)
	defer cc.Close()
	a, err := warmpathv1.NewStatusServiceClient(cc).GetStatus(c.t.Context(), new(warmpathv1.GetStatusRequest))
	if err != nil {
		return nil
	}
	return a.GetDeployments()[0]
}

// inSync waits until each server has a number of peers in sync.
func (c *serverCluster) inSync(peers int) {
	for i := range c.listen {
		require.Eventually(c.t, func() bool {
			all := c.state(i).GetCluster().GetPeers()
			for _, p := range all {
				if !p.GetInSync() {
					return false
				}
			}
			return len(all) == peers
		}, 3*time.Minute, 50*time.Millisecond, "server %d", i)
	}
}

// run sends conversations, with a fault after a third of the time.
func (c *serverCluster) run(rate float64, happens func()) drive.Result {
	rs, err := workload.Generate(workload.Spec{Name: "chat", Rate: rate, Duration: clusterTime, Seed: 1})
	require.NoError(c.t, err)
	before := sort.Search(len(rs), func(i int) bool { return rs[i].At >= clusterTime/3 })
	var once sync.Once
	var ended sync.WaitGroup
	defer ended.Wait()
	c.options.Progress = func(p drive.Progress) {
		if p.Sent > before {
			once.Do(func() { ended.Go(happens) })
		}
	}
	samples, err := drive.Run(c.t.Context(), rs, c.options)
	require.NoError(c.t, err)
	return drive.Summarize("", 4, samples, drive.Targets{})
}

// clusterFaults are the faults of a server or of NATS.
var clusterFaults = []struct {
	name    string
	happens func(*serverCluster)
}{
	{"none", func(*serverCluster) {}},
	{"kill", func(c *serverCluster) { c.servers[0].Kill() }},
	{"pause", func(c *serverCluster) {
		if !c.servers[0].Pause() {
			c.t.Error("SIGSTOP")
		}
	}},
	{"partition of a server", func(c *serverCluster) { c.wires[0].cut() }},
	{"partition of NATS", func(c *serverCluster) {
		for _, w := range c.wires {
			w.cut()
		}
	}},
	{"rolling update", func(c *serverCluster) {
		for i := range c.servers {
			c.servers[i].Stop()
			c.start(i, "0.0.0.0:"+c.listen[i])
			c.inSync(2)
		}
	}},
}

// Whatever fails, a server or NATS, no call fails, and the servers are in sync again afterwards.
func TestClusterFailures(t *testing.T) {
	for _, mode := range []string{"central", "broadcast"} {
		for _, f := range clusterFaults {
			if f.name == "none" || mode == "broadcast" && f.name != "kill" {
				continue
			}
			t.Run(mode+"/"+f.name, func(t *testing.T) {
				c := startCluster(t, mode, 20)
				r := c.run(8, func() { f.happens(c) })
				require.Zero(t, r.Errors, "%v", r.FirstError)
				require.Positive(t, r.CachedTokenRatio)
				for _, w := range c.wires {
					w.mend()
				}
				if f.name == "pause" {
					c.servers[0].Resume()
				}
				if f.name != "kill" {
					c.inSync(2)
				}
			})
		}
	}
}

// BenchmarkClusterFailures measures the share of prompt tokens found in caches after the failure. The engines run
// only twice as fast as real ones: the 3 s until a server counts as gone do not scale, and are a minute for engines
// that are 20 times as fast.
func BenchmarkClusterFailures(b *testing.B) {
	for _, mode := range []string{"central", "broadcast"} {
		for _, f := range clusterFaults {
			b.Run(mode+"/"+f.name, func(b *testing.B) {
				var cached float64
				for range b.N {
					c := startCluster(b, mode, 2)
					r := c.run(14, func() { f.happens(c) })
					require.Zero(b, r.Errors, "%v", r.FirstError)
					cached += r.CachedTokenRatio
				}
				b.ReportMetric(cached/float64(b.N), "cached")
			})
		}
	}
}
