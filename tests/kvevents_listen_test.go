package tests

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/kvindex"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// storesOf is a batch that stores a prompt's blocks of 16 tokens, in vLLM's format except for the parent of the first
// block.
func storesOf(t *testing.T, prompt []uint32, parent any) []byte {
	t.Helper()
	tokens := make([]any, len(prompt))
	for i, id := range prompt {
		tokens[i] = id
	}
	var hashes []any
	for i := range len(prompt) / 16 {
		hashes = append(hashes, engineHash(prompt, i))
	}
	b, err := msgp.AppendIntf(nil, []any{1.5, []any{[]any{"BlockStored", hashes, parent, tokens, 16}}})
	require.NoError(t, err)
	return b
}

// stored collects the contents that events report for replicas.
type stored struct {
	mu  sync.Mutex // guards the map
	all map[string]map[uint64]bool
}

func (s *stored) changed(changes []policy.CacheChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if c.Cleared || s.all[c.Replica] == nil {
			s.all[c.Replica] = map[uint64]bool{}
		}
		for _, h := range c.Removed {
			delete(s.all[c.Replica], h)
		}
		for _, h := range c.Stored {
			s.all[c.Replica][h] = true
		}
	}
}

// has reports whether events of a replica came.
func (s *stored) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id] != nil
}

// only waits until a replica holds these prompts and nothing else.
func (s *stored) only(t *testing.T, id string, prompts ...[]uint32) {
	t.Helper()
	want := map[uint64]bool{}
	for _, p := range prompts {
		for _, h := range kvindex.AppendTokens(nil, p, 16, kvindex.SeedFor("", "", "")) {
			want[h] = true
		}
	}
	eventually(t, id+" holds its prompts", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return maps.Equal(want, s.all[id])
	})
}

func followEvents(t *testing.T, replicas ...policy.Attributes) (*kvevents.Manager, *stored) {
	t.Helper()
	s := &stored{all: map[string]map[uint64]bool{}}
	m := kvevents.NewManager(kvevents.Options{Sink: s.changed, Quiet: time.Hour})
	t.Cleanup(m.Close)
	m.SetFleet(replicas)
	return m, s
}

// Issue 12.48: a parent hash of 0 means no parent, as in llm-d's events.
func TestKVEventsWithoutAParent(t *testing.T) {
	e := newZMQEngine(t)
	_, known := followEvents(t, policy.Attributes{ID: "r", KVEvents: "tcp://" + e.address()})
	e.subscribed(1)
	e.publish("kv", storesOf(t, promptOf(1, 3), 0))
	e.publish("kv", storesOf(t, promptOf(2, 2), []byte{0, 0, 0, 0, 0, 0, 0, 0}))
	known.only(t, "r", promptOf(1, 3), promptOf(2, 2))
}

// Issue 12.48: blocks whose parent is never stored are counted in the status.
func TestOrphanedKVEventsAreInTheStatus(t *testing.T) {
	e := newZMQEngine(t)
	conn := lookAsideConn(t, "deployments:\n  chat:\n    policy: {kv_aware: {}}\n    replicas:\n"+
		"    - {id: r, address: '127.0.0.1:1', kv_events: 'tcp://"+e.address()+"'}\n", server.Options{Logger: slog.New(slog.DiscardHandler)})
	e.subscribed(1)
	for n := range 200 {
		e.publish("kv", storesOf(t, promptOf(n, 1), 1_000_000+n))
	}
	pb := warmpathv1.NewStatusServiceClient(conn)
	eventually(t, "orphans are counted", func() bool {
		a, err := pb.GetStatus(t.Context(), &warmpathv1.GetStatusRequest{})
		require.NoError(t, err)
		return a.GetDeployments()[0].GetReplicas()[0].GetEvents().GetOrphaned() > 50
	})
}

// Issue 12.49: engines that dial one port are distinguished by their topics, in every channel and deployment that
// follows them. An engine that dials again keeps its identity.
func TestEnginesThatDialOnePort(t *testing.T) {
	port := freePort(t)
	replica := func(n int) policy.Attributes {
		return policy.Attributes{
			ID: fmt.Sprint("r", n), Address: fmt.Sprintf("10.0.0.%d:8000", n), Models: nil,
			KVEvents: fmt.Sprintf("tcp://*:%s?topic=kv@10.0.0.%d:8000@", port, n),
		}
	}
	topic := func(n int) string { return fmt.Sprintf("kv@10.0.0.%d:8000@llama", n) }
	ma, a := followEvents(t, replica(1), replica(2))
	mb, b := followEvents(t, replica(2))
	engines := []*zmqEngine{nil, newZMQEngine(t), newZMQEngine(t)}
	for _, e := range engines[1:] {
		e.dial("127.0.0.1:" + port)
		e.subscribed(1)
	}
	engines[1].publish(topic(1), storesOf(t, promptOf(1, 2), nil))
	engines[2].publish(topic(2), storesOf(t, promptOf(2, 2), nil))
	a.only(t, "r1", promptOf(1, 2))
	a.only(t, "r2", promptOf(2, 2))
	b.only(t, "r2", promptOf(2, 2))
	require.False(t, b.has("r1"))
	for _, st := range append(ma.Status(), mb.Status()...) {
		require.True(t, st.Connected, "%+v", st)
	}

	mb.Close() // the others go on
	again := newZMQEngine(t)
	again.dial("127.0.0.1:" + port)
	again.subscribed(1)
	again.publish(topic(2), storesOf(t, promptOf(3, 2), nil))
	a.only(t, "r2", promptOf(3, 2))
	engines[1].publish(topic(1), storesOf(t, promptOf(4, 2), nil))
	a.only(t, "r1", promptOf(1, 2), promptOf(4, 2))

	ma.SetFleet([]policy.Attributes{replica(1)})
	engines[1].publish(topic(1), storesOf(t, promptOf(5, 2), nil))
	a.only(t, "r1", promptOf(1, 2), promptOf(4, 2), promptOf(5, 2))
	ma.Close()
	eventually(t, "the port is free", func() bool {
		lis, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			lis.Close()
		}
		return err == nil
	})
}

// Issue 12.49: two replicas whose topics are not distinct do not get each other's events.
func TestEnginesWithOverlappingTopics(t *testing.T) {
	port := freePort(t)
	m, known := followEvents(t, policy.Attributes{ID: "a", Address: "a:1", KVEvents: "tcp://*:" + port})
	e := newZMQEngine(t)
	e.dial("127.0.0.1:" + port)
	e.subscribed(1)
	m.SetFleet([]policy.Attributes{
		{ID: "a", Address: "a:1", KVEvents: "tcp://*:" + port}, {ID: "b", Address: "b:1", KVEvents: "tcp://*:" + port + "?topic=kv"},
	})
	eventually(t, "b is refused for its topic", func() bool {
		s := m.Status()
		return len(s) == 2 && strings.Contains(s[1].Problem, "topics")
	})
	e.publish("kv", storesOf(t, promptOf(1, 2), nil))
	known.only(t, "a", promptOf(1, 2))
	require.False(t, known.has("b"))
}

// Issue 12.49: without bind= a port is open on loopback only.
func TestKVEventsListenOnLoopback(t *testing.T) {
	for bind, want := range map[string]string{"": "127.0.0.1", "?bind=127.0.0.2": "127.0.0.2"} {
		port := freePort(t)
		m, _ := followEvents(t, policy.Attributes{ID: "a", Address: "a:1", KVEvents: "tcp://*:" + port + bind})
		e := newZMQEngine(t)
		e.dial(net.JoinHostPort(want, port))
		e.subscribed(1)
		for _, other := range []string{"127.0.0.1", "127.0.0.2"} {
			c, err := net.Dial("tcp", net.JoinHostPort(other, port))
			require.Equal(t, other == want, err == nil, other)
			if err == nil {
				c.Close()
			}
		}
		m.Close()
	}
}

// Issue 12.49: a config and a fleet file that bind one port twice are refused.
func TestPortsBoundTwiceAreRefused(t *testing.T) {
	replicas := "replicas:\n- {id: a, address: 'a:1', kv_events: 'tcp://*:5557'}\n- {id: b, address: 'b:1', kv_events: 'tcp://*:5557'}\n"
	_, err := fleetfile.Parse([]byte(replicas))
	require.ErrorContains(t, err, "5557")

	for config, refused := range map[string]bool{
		"deployments:\n  x:\n    kv_events: 'tcp://*:5557'\n    replicas: [{id: a, address: 'a:1'}, {id: b, address: 'b:1'}]\n":                          true,
		"deployments:\n  x:\n    kv_events: 'tcp://*:5557?topic=kv@HOST:PORT@'\n    replicas: [{id: a, address: 'a:1'}, {id: b, address: 'b:1'}]\n":      false,
		"deployments:\n  x: {kv_events: 'tcp://*:5557', replicas: [{address: 'a:1'}]}\n  y: {kv_events: 'tcp://*:5557', replicas: [{address: 'b:1'}]}\n": true,
		"deployments:\n  x: {kv_events: 'tcp://*:5557', replicas: [{address: 'a:1'}]}\n  y: {kv_events: 'tcp://*:5557', replicas: [{address: 'a:1'}]}\n": false,
	} {
		_, err := server.ParseConfig([]byte(config))
		require.Equal(t, refused, err != nil, "%s: %v", config, err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(freeAddr(t))
	require.NoError(t, err)
	return port
}
