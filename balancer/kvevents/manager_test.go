package kvevents

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/routing"
)

// recorded is what a Manager told.
type recorded struct {
	mu  sync.Mutex
	all []routing.CacheChange
}

func (r *recorded) sink(cs []routing.CacheChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cs {
		c.Stored = slices.Clone(c.Stored)
		r.all = append(r.all, c)
	}
}

// wait waits for a change that was not waited for yet.
func (r *recorded) wait(t *testing.T) (c routing.CacheChange) {
	t.Helper()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.all) == 0 {
			return false
		}
		c, r.all = r.all[0], r.all[1:]
		return true
	}, 30*time.Second, time.Millisecond)
	return c
}

func TestManagerFollowsTheFleet(t *testing.T) {
	a, b := newPublisher(t), newPublisher(t)
	a.publish(one(t, 0), false)
	b.publish(one(t, 1), false)
	var got recorded
	m := NewManager(Options{Sink: got.sink})
	defer m.Close()
	at := func(id string, p *publisher) routing.Attributes {
		return routing.Attributes{ID: id, KVEvents: "tcp://" + p.address(0), KVEventsReplay: "tcp://" + p.address(1), Models: []string{"m"}}
	}
	m.SetFleet([]routing.Attributes{at("a", a), {ID: "silent"}, {ID: "wrong", KVEvents: "udp://x"}})
	require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)
	m.SetFleet([]routing.Attributes{at("a", a), {ID: "wrong", KVEvents: "udp://x"}})
	require.Eventually(t, func() bool { return len(m.Status()) == 2 }, 30*time.Second, time.Millisecond)
	sts := m.Status()
	require.Equal(t, "a", sts[0].Replica)
	require.True(t, sts[0].Connected)
	require.Contains(t, sts[1].Problem, "kv_events")

	m.SetFleet([]routing.Attributes{at("a", b)})
	c := got.wait(t)
	require.True(t, c.Cleared, "what the old source told is forgotten before the new one tells")
	require.Equal(t, "a", c.Replica)
	require.Equal(t, chained(ids(1, 1)), got.wait(t).Stored)
	m.SetFleet(nil)
	require.True(t, got.wait(t).Cleared)
	m.SetFleet([]routing.Attributes{at("a", a)})
	require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)
	m.Close()
	require.True(t, got.wait(t).Cleared)
	m.SetFleet([]routing.Attributes{at("b", b)})
	require.Len(t, m.Status(), 1, "closed")
}

// The Router forgets what it was told of a replica that says that it was restarted, which may come after the news.
func TestManagerTellsAgainOfAnotherInstance(t *testing.T) {
	p := newPublisher(t)
	p.publish(one(t, 0), false)
	var got recorded
	m := NewManager(Options{Sink: got.sink})
	defer m.Close()
	for _, c := range []struct {
		instance string
		again    bool
	}{{"", true}, {"1", false}, {"1", false}, {"2", true}, {"", false}, {"3", false}, {"4", true}} {
		m.SetFleet([]routing.Attributes{{
			ID: "a", KVEvents: "tcp://" + p.address(0), KVEventsReplay: "tcp://" + p.address(1), Models: []string{"m"}, Instance: c.instance,
		}})
		if !c.again {
			continue
		}
		if c.instance != "" {
			require.True(t, got.wait(t).Cleared)
		}
		require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)
	}
	m.Close()
	require.True(t, got.wait(t).Cleared)
	require.Empty(t, got.all)
}

// control is a connection to an engine that names its sources.
type control struct {
	grpc.ClientConnInterface
	reply []byte
	fails int
}

func (c *control) Invoke(_ context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	if c.fails--; c.fails >= 0 {
		return errors.New("not yet")
	}
	if method == "/vllm.Control/GetKvEventSources" {
		*reply.(*[]byte) = c.reply
	}
	return nil
}

func TestManagerAsksTheEngineForItsSources(t *testing.T) {
	p := newPublisher(t)
	p.publish(one(t, 0), false)
	source := pb{}.bytes(1, []byte("zmq")).bytes(2, []byte("tcp://"+p.address(0))).bytes(4, []byte("tcp://"+p.address(1)))
	conn := &control{reply: pb{}.bytes(1, source), fails: 1}
	var got recorded
	m := NewManager(Options{Sink: got.sink, Connect: func(context.Context, string) (grpc.ClientConnInterface, error) { return conn, nil }})
	defer m.Close()
	m.SetFleet([]routing.Attributes{{ID: "a", Address: "10.0.0.1:1", KVEvents: "sources:vllm", Models: []string{"m"}}})
	require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)

	alone := NewManager(Options{Sink: got.sink})
	defer alone.Close()
	alone.SetFleet([]routing.Attributes{{ID: "a", KVEvents: "grpc:vllm"}})
	require.Eventually(t, func() bool {
		sts := alone.Status()
		return len(sts) == 1 && sts[0].Problem == errNoConnect.Error()
	}, 30*time.Second, time.Millisecond)
}

// Why nothing can be had is logged once, and again after something came.
func TestUnreachableSourceIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	o := Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	r := &replica{id: "a", opts: o.withDefaults(), sizes: new(sizes), sink: func([]routing.CacheChange) {}}
	s := r.stream("tcp://10.0.0.1:5557", 0, func(*batch, []byte) {})
	for range 3 {
		s.failed(errors.New("refused"))
		s.failed(nil) // a connection alone says little: a gRPC stream is open before its server has looked at it
	}
	require.Equal(t, 1, strings.Count(log.String(), "cannot be had"), log.String())
	require.Contains(t, log.String(), "replica=a source=tcp://10.0.0.1:5557 error=refused")
	s.apply(context.Background(), 0, nil)
	s.failed(errors.New("reset"))
	require.Equal(t, 2, strings.Count(log.String(), "cannot be had"), log.String())
}
