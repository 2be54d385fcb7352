package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/internal/lab/workload"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A serverCluster is three look-aside servers, each a process, for a fleet of simulated engines with KV events.
type serverCluster struct {
	t       *testing.T
	options drive.Options
	configs []string // files
	listen  []string // ports
	servers []*drive.Process
	wires   []*natsWire // between each server and NATS, where that runs by itself
}

const clusterSpeed = 20

// A natsWire is a TCP proxy to NATS. While cut is locked nothing passes, without notice.
type natsWire struct {
	lis net.Listener
	cut sync.RWMutex
}

func newNATSWire(t *testing.T, to string) *natsWire {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &natsWire{lis: lis}
	var all sync.WaitGroup
	done := make(chan struct{})
	carry := func(from, into net.Conn) {
		defer into.Close()
		b := make([]byte, 64<<10)
		for n, err := from.Read(b); err == nil; n, err = from.Read(b) {
			w.cut.RLock()
			_, err = into.Write(b[:n])
			w.cut.RUnlock()
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

// mend ends a cut, if there is one.
func (w *natsWire) mend() {
	w.cut.TryLock()
	w.cut.Unlock()
}

// startCluster starts them, with NATS inside, or with one that runs.
func startCluster(t *testing.T, mode string, embedded bool) *serverCluster {
	fleet, err := drive.StartFleet(t.Context(), 4, grpcserver.Config{Speed: clusterSpeed, KVEvents: kvpublish.NewLog(0)})
	require.NoError(t, err)
	t.Cleanup(fleet.Kill)
	const n = 3
	c := &serverCluster{t: t, configs: make([]string, n), servers: make([]*drive.Process, n)}
	c.options = drive.Options{
		Clients: 6, Speed: clusterSpeed, Seed: 1, WarmUp: 20 * time.Second, Replicas: drive.Replicas(fleet.Target()),
		TargetOf: func(client int) string {
			host := fmt.Sprintf("127.0.0.%d:", 1+client)
			return "warmpath://" + host + strings.Join(c.listen, ","+host) + "/live"
		},
	}
	routes := steadyPorts(t, n)
	l := live{Options: drive.Options{Speed: clusterSpeed}, engines: 4, deadline: 5 * time.Second}
	var running *natsserver.Server
	if !embedded {
		running, err = natsserver.NewServer(&natsserver.Options{
			Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true,
		})
		require.NoError(t, err)
		go running.Start()
		require.True(t, running.ReadyForConnections(10*time.Second))
		t.Cleanup(func() {
			running.Shutdown()
			running.WaitForShutdown()
		})
	}
	for i := range n {
		config, err := l.serverConfig(mode, "prefix_cache_affinity", c.options.Replicas, routes, i)
		require.NoError(t, err)
		if !embedded {
			w := newNATSWire(t, running.Addr().String())
			c.wires = append(c.wires, w)
			var all map[string]any
			require.NoError(t, json.Unmarshal(config, &all))
			all["cluster"] = cluster.Config{NATS: &cluster.NATS{URL: "nats://" + w.lis.Addr().String()}}
			config, err = json.Marshal(all)
			require.NoError(t, err)
		}
		c.configs[i] = file(t, "server.yaml", string(config))
		port := strconv.Itoa(steadyPorts(t, 1)[0])
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

// triedPorts counts the ports that were tried: no two tests get the same.
var triedPorts atomic.Int64

// steadyPorts returns free ports below those that the system gives to programs that ask for any: they stay free while a
// server is started again.
func steadyPorts(t *testing.T, n int) (all []int) {
	for len(all) < n {
		port := 10_000 + (os.Getpid()*101+int(triedPorts.Add(1)))%20_000
		if lis, err := net.Listen("tcp", fmt.Sprint("0.0.0.0:", port)); err == nil {
			require.NoError(t, lis.Close())
			all = append(all, port)
		}
	}
	return all
}

// state is a server's part in the cluster; nil = it does not answer.
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

// inSync waits until each server has so many peers, in sync.
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
		}, time.Minute, 50*time.Millisecond, "server %d", i)
	}
}

// run sends conversations, with something that happens after a third of them.
func (c *serverCluster) run(happens func()) drive.Result {
	rs, err := workload.Generate(workload.Spec{Name: "chat", Rate: 8, Duration: 100 * time.Second, Seed: 1})
	require.NoError(c.t, err)
	var once sync.Once
	var ended sync.WaitGroup
	c.options.Progress = func(p drive.Progress) {
		if p.Sent > len(rs)/3 {
			once.Do(func() { ended.Go(happens) })
		}
	}
	samples, err := drive.Run(c.t.Context(), rs, c.options)
	require.NoError(c.t, err)
	ended.Wait()
	return drive.Summarize("", 4, samples, drive.Targets{})
}

// Whatever happens to a server or to NATS, no call fails, and prompts are found in caches nearly as often as without it.
// The engines run 20 times as fast as real ones, and the servers do not: the 3 s until a server counts as gone are two
// thirds of the run. A server that hangs keeps its clients for as long.
func TestClusterFailures(t *testing.T) {
	faults := []struct {
		name     string
		embedded bool
		happens  func(*serverCluster)
	}{
		{"none", true, func(*serverCluster) {}},
		{"kill", true, func(c *serverCluster) { c.servers[0].Kill() }},
		{"pause", true, func(c *serverCluster) {
			if !c.servers[0].Pause() {
				t.Error("SIGSTOP")
			}
		}},
		{"partition of a server", false, func(c *serverCluster) { c.wires[0].cut.Lock() }},
		{"partition of NATS", false, func(c *serverCluster) {
			for _, w := range c.wires {
				w.cut.Lock()
			}
		}},
		{"rolling update", true, func(c *serverCluster) {
			for i := range c.servers {
				c.servers[i].Stop()
				c.start(i, "0.0.0.0:"+c.listen[i])
				c.inSync(2)
			}
		}},
	}
	for _, mode := range []string{"central", "broadcast"} {
		var without drive.Result
		for _, f := range faults {
			if mode == "broadcast" && f.name != "none" && f.name != "kill" {
				continue
			}
			t.Run(mode+"/"+f.name, func(t *testing.T) {
				c := startCluster(t, mode, f.embedded)
				r := c.run(func() { f.happens(c) })
				t.Logf("%d requests, cached %.4f, TTFT %.1f ms, %v", r.Requests, r.CachedTokenRatio, r.TTFT.Mean, r.Decisions)
				require.Zero(t, r.Errors, "%v", r.FirstError)
				if f.name == "none" {
					without = r
				}
				require.GreaterOrEqual(t, r.CachedTokenRatio, 0.8*without.CachedTokenRatio, "on a machine that is busy") // 0.91 to 1
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
