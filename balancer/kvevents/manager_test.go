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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvevents"
)

// recorded is what a Manager passed on.
type recorded struct {
	mu  sync.Mutex
	all []policy.CacheChange
}

func (r *recorded) sink(cs []policy.CacheChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cs {
		c.Stored = slices.Clone(c.Stored)
		r.all = append(r.all, c)
	}
}

// wait waits for a change that was not waited for yet.
func (r *recorded) wait(t *testing.T) (c policy.CacheChange) {
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
	m := kvevents.NewManager(kvevents.Options{Sink: got.sink})
	defer m.Close()
	at := func(id string, p *publisher) policy.Attributes {
		return policy.Attributes{ID: id, KVEvents: "tcp://" + p.address(0), KVEventsReplay: "tcp://" + p.address(1), Models: []string{"m"}}
	}
	m.SetFleet([]policy.Attributes{at("a", a), {ID: "silent"}, {ID: "wrong", KVEvents: "udp://x"}})
	require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)
	m.SetFleet([]policy.Attributes{at("a", a), {ID: "wrong", KVEvents: "udp://x"}})
	require.Eventually(t, func() bool {
		sts := m.Status()
		return len(sts) == 2 && sts[0].Replica == "a" && sts[0].Connected && strings.Contains(sts[1].Problem, "kv_events")
	}, 30*time.Second, time.Millisecond)

	m.SetFleet([]policy.Attributes{at("a", b)})
	c := got.wait(t)
	require.True(t, c.Cleared, "the events of the old source are cleared before the new one starts")
	require.Equal(t, "a", c.Replica)
	require.Equal(t, chained(ids(1, 1)), got.wait(t).Stored)
	m.SetFleet(nil)
	require.True(t, got.wait(t).Cleared)
	m.SetFleet([]policy.Attributes{at("a", a)})
	require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)
	m.Close()
	require.True(t, got.wait(t).Cleared)
	m.SetFleet([]policy.Attributes{at("b", b)})
	require.Len(t, m.Status(), 1, "closed")
}

// The Router clears the cache of a restarted replica, which may show after its events.
func TestManagerFollowsAnotherInstanceAgain(t *testing.T) {
	p := newPublisher(t)
	p.publish(one(t, 0), false)
	var got recorded
	m := kvevents.NewManager(kvevents.Options{Sink: got.sink})
	defer m.Close()
	for _, c := range []struct {
		instance string
		again    bool
	}{{"", true}, {"1", false}, {"1", false}, {"2", true}, {"", false}, {"3", false}, {"4", true}} {
		m.SetFleet([]policy.Attributes{{
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

// Replicas of one model whose blocks differ in size are a problem that has the sizes.
func TestBlockSizesThatDiffer(t *testing.T) {
	a, b := newPublisher(t), newPublisher(t)
	a.publish(one(t, 0), false)
	b.publish(pack(t, array{1.5, array{array{"BlockStored", array{1, 2}, nil, array{1, 2, 3, 4}, 2}}}), false)
	m := kvevents.NewManager(kvevents.Options{Sink: new(recorded).sink})
	defer m.Close()
	at := func(id string, p *publisher, model string) policy.Attributes {
		return policy.Attributes{ID: id, KVEvents: "tcp://" + p.address(0), KVEventsReplay: "tcp://" + p.address(1), Models: []string{model}}
	}
	m.SetFleet([]policy.Attributes{at("a", a, "m"), at("b", b, "m"), at("c", b, "other")})
	problems := func() (all []string) {
		for _, st := range m.Status() {
			all = append(all, st.Problem)
		}
		return all
	}
	want := []string{"", "its blocks have 2 tokens, those of another replica of the model 4", ""}
	require.Eventually(t, func() bool { return slices.Equal(want, problems()) }, 30*time.Second, time.Millisecond, want)
}

// A replica that joins at a port that cannot listen has that problem at once, not after the next attempt.
func TestPortThatCannotListen(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	const address = "127.0.0.1:5557"
	ports.mu.Lock()
	ports.open[address] = &port{address: address, stop: func() {}, done: ended, problem: errors.New("in use")}
	ports.mu.Unlock()
	m := kvevents.NewManager(kvevents.Options{Sink: new(recorded).sink})
	defer m.Close()
	m.SetFleet([]policy.Attributes{{ID: "a", KVEvents: "tcp://*:5557"}})
	require.Eventually(t, func() bool {
		all := m.Status()
		return len(all) == 1 && all[0].Problem == "in use"
	}, 30*time.Second, time.Millisecond)
}

// control is a connection to an engine that reports its sources.
type control struct {
	grpc.ClientConnInterface
	method string // the only one that it has
	reply  []byte
	fails  int
}

func (c *control) Invoke(_ context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	if c.fails--; c.fails >= 0 {
		return errors.New("not yet")
	}
	if method != c.method {
		return status.Error(codes.Unimplemented, "unknown service")
	}
	*reply.(*[]byte) = c.reply
	return nil
}

// vLLM names its sources by vllm.KvTransfer, before that by vllm.Control.
func TestManagerAsksTheEngineForItsSources(t *testing.T) {
	for _, method := range []string{"/vllm.KvTransfer/GetKvEventSources", "/vllm.Control/GetKvEventSources"} {
		t.Run(method, func(t *testing.T) { testSources(t, method) })
	}
}

func testSources(t *testing.T, method string) {
	p := newPublisher(t)
	p.publish(one(t, 0), false)
	source := append(append(field(1, "zmq"), field(2, "tcp://"+p.address(0))...), field(4, "tcp://"+p.address(1))...)
	conn := &control{method: method, reply: field(1, string(source)), fails: 1}
	var got recorded
	m := kvevents.NewManager(kvevents.Options{Sink: got.sink, Connect: func(context.Context, string) (grpc.ClientConnInterface, error) { return conn, nil }})
	defer m.Close()
	m.SetFleet([]policy.Attributes{{ID: "a", Address: "10.0.0.1:1", KVEvents: "sources:vllm", Models: []string{"m"}}})
	require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)
	require.Len(t, m.Status(), 1, "what was asked for the sources is no stream")

	alone := kvevents.NewManager(kvevents.Options{Sink: got.sink})
	defer alone.Close()
	alone.SetFleet([]policy.Attributes{{ID: "a", KVEvents: "grpc:vllm"}})
	require.Eventually(t, func() bool {
		sts := alone.Status()
		return len(sts) == 1 && strings.Contains(sts[0].Problem, "no gRPC connection")
	}, 30*time.Second, time.Millisecond)
}

// The cause of missing events is logged once, and again after events came.
func TestUnreachableSourceIsLoggedOnce(t *testing.T) {
	p := newPublisher(t)
	var log logged
	var got recorded
	m := kvevents.NewManager(kvevents.Options{Sink: got.sink, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer m.Close()
	m.SetFleet([]policy.Attributes{{ID: "a", KVEvents: "tcp://" + p.address(0), Models: []string{"m"}}})
	status := func() kvevents.Status { return m.Status()[0] }
	for range 3 { // a connection alone shows little
		<-p.topics
		p.cut()
	}
	<-p.topics
	require.Equal(t, 1, strings.Count(log.String(), "cannot be had"), log.String())
	p.publish(one(t, 0), false)
	require.Equal(t, chained(ids(0, 1)), got.wait(t).Stored)
	p.cut()
	require.Eventually(t, func() bool { return status().Connections == 5 }, 30*time.Second, time.Millisecond)
	require.Equal(t, 2, strings.Count(log.String(), "cannot be had"), log.String())
}

// logged is a log that is read while it is written.
type logged struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// field is a length-delimited field of a protobuf message.
func field(num protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), text)
}
