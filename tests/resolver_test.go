package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer"
	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/client"
)

// update is what a directory tells its channel.
type update struct {
	resolver.State
	serviceConfig string // "" for none
}

// state is an update with replicas that carry no attributes.
func state(serviceConfig string, rs ...*replica) update {
	u := update{serviceConfig: serviceConfig}
	for _, r := range rs {
		u.Endpoints = append(u.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: r.addr}}})
	}
	return u
}

func members(rs ...fleet.Replica) update {
	var u update
	for _, r := range rs {
		u.Endpoints = append(u.Endpoints, fleet.Endpoint(r))
	}
	return u
}

// directory is a resolver whose state a test sets. It serves one channel.
type directory struct {
	scheme string

	mu   sync.Mutex // guards the fields below
	cc   resolver.ClientConn
	last update
	err  error // reported until there is an update
}

func newDirectory(scheme string, first update) *directory {
	return &directory{scheme: scheme, last: first}
}

func (d *directory) Scheme() string                        { return d.scheme }
func (d *directory) ResolveNow(resolver.ResolveNowOptions) {}
func (d *directory) Close()                                {}

func (d *directory) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	d.mu.Lock()
	d.cc = cc
	u, err := d.last, d.err
	d.mu.Unlock()
	if err != nil {
		cc.ReportError(err)
		return d, nil
	}
	d.set(u)
	return d, nil
}

func (d *directory) set(u update) {
	d.mu.Lock()
	d.last, d.err = u, nil
	cc := d.cc
	d.mu.Unlock()
	if cc == nil {
		return
	}
	if u.serviceConfig != "" {
		u.ServiceConfig = cc.ParseServiceConfig(u.serviceConfig)
	}
	_ = cc.UpdateState(u.State) // an error asks for another resolution
}

func (d *directory) fail(err error) {
	d.mu.Lock()
	cc := d.cc
	d.mu.Unlock()
	cc.ReportError(err)
}

func startWith(t testing.TB, r *replica, register func(*grpc.Server), opts ...grpc.ServerOption) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.addr = l.Addr().String()
	r.server = grpc.NewServer(opts...)
	testpb.RegisterTestServiceServer(r.server, r)
	register(r.server)
	go func() { _ = r.server.Serve(l) }()
	t.Cleanup(func() { r.server.Stop() })
}

// conns counts the connections that a channel opened.
type conns struct{ begun atomic.Int64 }

func (c *conns) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *conns) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *conns) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *conns) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.begun.Add(1)
	}
}

func TestUnderAnyResolver(t *testing.T) {
	rs := replicas(t, 3)
	_, port, err := net.SplitHostPort(rs[0].addr)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(path, []byte("replicas: [{address: \""+rs[0].addr+"\"}]"), 0o600))
	mr := newDirectory("any", state("", rs[0]))
	for _, target := range []string{
		"dns:///localhost:" + port,
		"localhost:" + port,
		"passthrough:///" + rs[0].addr,
		"any:///x",
		"warmpath:///" + rs[0].addr,
		"warmpath:" + rs[0].addr,
		"warmpath-file://" + path,
	} {
		t.Run(strings.SplitN(target, ":", 2)[0], func(t *testing.T) {
			for _, how := range []string{"New", "DialOptions"} {
				m := newMeter(t)
				opts := []client.Option{client.WithConfig(config(`{"prefix_cache_affinity":{}}`)), m.option.(client.Option)}
				var cc *grpc.ClientConn
				if how == "New" {
					cc = dial(t, target, opts[0], opts[1], grpc.WithResolvers(mr))
				} else {
					var err error
					cc, err = grpc.NewClient(target, append(client.DialOptions(opts...), insecureOption(), grpc.WithResolvers(mr), grpc.WithNoProxy())...)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, cc.Close()) })
				}
				for range 3 {
					require.Equal(t, rs[0].addr, where(t, deadline(t), cc, "x"))
				}
				require.EqualValues(t, 3, m.sum(t, "warmpath.decisions"), "one decision a call")
				if how == "New" {
					mr = newDirectory("any", state("", rs[0]))
				}
			}
		})
	}
}

// The fleet file is followed: replicas join, leave, drain, load adapters and get
// more room while the channel is in use.
func TestFleetFileIsFollowed(t *testing.T) {
	release := make(chan struct{})
	rs := make([]*replica, 3)
	for i := range rs {
		r := &replica{}
		r.unary = func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if string(q.Payload.GetBody()) == "hold" {
				<-release
			}
			return &testpb.SimpleResponse{Username: r.addr}, nil
		}
		rs[i] = start(t, r)
	}
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write := func(entries ...string) {
		require.NoError(t, os.WriteFile(path+".new", []byte("replicas:\n- "+strings.Join(entries, "\n- ")+"\n"), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	entry := func(i int, more string) string { return fmt.Sprintf("{id: r%d, address: %q%s}", i, rs[i].addr, more) }
	write(entry(0, ""), entry(1, ""))
	h := &conns{}
	m := newMeter(t)
	cc := dial(t, "warmpath-file://"+path, client.WithConfig(`{"policy":{"round_robin":{}},"dialects":[{"methods":["`+unaryMethod+`"],"adapter":"3.2"}]}`),
		grpc.WithStatsHandler(h), m.option)
	stub := testpb.NewTestServiceClient(cc)
	serves := func(text string, want ...int) func() bool {
		return func() bool {
			got := map[string]bool{}
			for range 3 * len(rs) {
				got[where(t, deadline(t), cc, text)] = true
			}
			for _, i := range want {
				if !got[rs[i].addr] {
					return false
				}
			}
			return len(got) == len(want)
		}
	}
	eventually(t, "the first two", serves("", 0, 1))
	write(entry(0, ""), entry(1, ""), entry(2, ""))
	eventually(t, "one joins", serves("", 0, 1, 2))
	write(entry(0, ", draining: true"), entry(1, ""), entry(2, ""))
	eventually(t, "one drains", serves("", 1, 2))
	write(entry(0, ""), entry(1, ", adapters: [lora]"), entry(2, ""))
	eventually(t, "an adapter is loaded", serves("lora", 1))
	eventually(t, "others go anywhere", serves("", 0, 1, 2))
	require.EqualValues(t, 3, h.begun.Load(), "none of this touched a connection")
	write(entry(1, ", max_ongoing_requests: 1"))
	eventually(t, "two leave", serves("", 1))
	errs := make(chan error, 2)
	call := func() { _, err := stub.UnaryCall(deadline(t), simple("hold")); errs <- err }
	go call()
	eventually(t, "one is under way", func() bool { return m.ongoing(t) == 1 })
	go call()
	eventually(t, "one waits", func() bool { return m.sum(t, "warmpath.queue.length") == 1 })
	write(entry(1, ", max_ongoing_requests: 2"))
	eventually(t, "capacity grows", func() bool { return m.ongoing(t) == 2 })
	require.NoError(t, os.WriteFile(path, []byte("replicas: [{"), 0o600))
	close(release)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	require.True(t, serves("", 1)(), "a broken file changes nothing")
}

// Models declared by a later update count, although the configuration did not
// change.
func TestModelsDeclaredLater(t *testing.T) {
	rs := replicas(t, 2)
	a, b := fleet.Replica{ID: "a", Address: rs[0].addr}, fleet.Replica{ID: "b", Address: rs[1].addr}
	mr := newDirectory("models", members(a, b))
	cc := dial(t, "models:///x", grpc.WithResolvers(mr),
		client.WithConfig(`{"policy":{"round_robin":{}},"dialects":[{"methods":["`+unaryMethod+`"],"model":"3.2"}]}`))
	stub := testpb.NewTestServiceClient(cc)
	for _, id := range []string{"a", "b"} {
		eventually(t, id, func() bool { _, err := stub.UnaryCall(client.WithPin(deadline(t), id), simple("")); return err == nil })
	}
	a.Models, b.Models = []string{"llama"}, []string{"qwen"}
	mr.set(members(a, b))
	for range 6 {
		require.Equal(t, rs[0].addr, where(t, deadline(t), cc, "llama"))
		require.Equal(t, rs[1].addr, where(t, deadline(t), cc, "qwen"))
	}
}

// An id that moves to another address takes its calls along; one that swaps
// addresses with another, too.
func TestIDsMove(t *testing.T) {
	rs := replicas(t, 3)
	at := func(addrs ...string) update {
		var list []fleet.Replica
		for i, a := range addrs {
			list = append(list, fleet.Replica{ID: fmt.Sprint("r", i), Address: a})
		}
		return members(list...)
	}
	mr := newDirectory("move", at(rs[0].addr, rs[1].addr))
	cc := dial(t, "move:///x", grpc.WithResolvers(mr), roundRobin())
	goes := func(id, want string) {
		t.Helper()
		eventually(t, id, func() bool {
			reply, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithPin(deadline(t), id), simple(""))
			return err == nil && reply.Username == want
		})
	}
	goes("r0", rs[0].addr)
	goes("r1", rs[1].addr)
	for range 20 {
		mr.set(at(rs[1].addr, rs[0].addr)) // swapped: both connections stay
		require.Equal(t, rs[1].addr, where(t, client.WithPin(deadline(t), "r0"), cc, ""))
		require.Equal(t, rs[0].addr, where(t, client.WithPin(deadline(t), "r1"), cc, ""))
		mr.set(at(rs[0].addr, rs[1].addr))
		require.Equal(t, rs[0].addr, where(t, client.WithPin(deadline(t), "r0"), cc, ""))
	}
	mr.set(at(rs[2].addr, rs[1].addr))
	goes("r0", rs[2].addr)
	goes("r1", rs[1].addr)
}

// Of endpoints with the same id, or the same address, the first counts.
func TestDuplicates(t *testing.T) {
	rs := replicas(t, 2)
	mr := newDirectory("twice", members(
		fleet.Replica{ID: "a", Address: rs[0].addr},
		fleet.Replica{ID: "a", Address: rs[1].addr},
		fleet.Replica{ID: "b", Address: rs[0].addr},
		fleet.Replica{ID: "a", Address: rs[0].addr},
	))
	cc := dial(t, "twice:///x", grpc.WithResolvers(mr), roundRobin())
	for range 10 {
		require.Equal(t, rs[0].addr, where(t, deadline(t), cc, ""))
		require.Equal(t, rs[0].addr, where(t, client.WithPin(deadline(t), "a"), cc, ""))
		mr.set(members(
			fleet.Replica{ID: "a", Address: rs[0].addr},
			fleet.Replica{ID: "a", Address: rs[1].addr},
			fleet.Replica{ID: "b", Address: rs[0].addr},
		))
	}
	require.Zero(t, rs[1].calls.Load())
}

func TestResolverErrorsAndEmptyFleets(t *testing.T) {
	rs := replicas(t, 2)
	mr := &directory{scheme: "empty", err: errors.New("the registry is down")}
	cc := dial(t, "empty:///x", grpc.WithResolvers(mr), roundRobin())
	stub := testpb.NewTestServiceClient(cc)
	_, err := stub.UnaryCall(deadline(t), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "the registry is down")
	mr.set(members(fleet.Replica{ID: "a", Address: rs[0].addr}))
	eventually(t, "the fleet is there", func() bool { _, err := stub.UnaryCall(deadline(t), simple("")); return err == nil })
	mr.fail(errors.New("the registry is down"))
	require.Equal(t, rs[0].addr, where(t, deadline(t), cc, ""), "the last good fleet stays")

	mr.set(update{})
	_, err = stub.UnaryCall(deadline(t), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err))
	mr.fail(errors.New("the registry is gone"))
	_, err = stub.UnaryCall(deadline(t), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "the registry is gone")
	mr.set(members(fleet.Replica{ID: "b", Address: rs[1].addr}))
	eventually(t, "another fleet", func() bool {
		reply, err := stub.UnaryCall(deadline(t), simple(""))
		return err == nil && reply.Username == rs[1].addr
	})
}

// What a resolver fails with whose fleet was empty may be a status. It is not the call's.
func TestStatusOfAResolver(t *testing.T) {
	rs := replicas(t, 1)
	for _, code := range []codes.Code{codes.NotFound, codes.Unauthenticated, codes.Unavailable} {
		mr := &directory{scheme: "refused"}
		cc := dial(t, "refused:///x", grpc.WithResolvers(mr), roundRobin())
		stub := testpb.NewTestServiceClient(cc)
		_, err := stub.UnaryCall(deadline(t), simple(""))
		require.Equal(t, codes.Unavailable, status.Code(err))
		mr.fail(fmt.Errorf("the registry: %w", status.Error(code, "it refuses")))
		_, err = stub.UnaryCall(deadline(t), simple(""))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "it refuses")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err = stub.UnaryCall(ctx, simple(""), grpc.WaitForReady(true))
		cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "it waits")
		mr.set(members(fleet.Replica{ID: "a", Address: rs[0].addr}))
		_, err = stub.UnaryCall(deadline(t), simple(""), grpc.WaitForReady(true))
		require.NoError(t, err)
	}
}

// Replicas join and leave under load: no call fails or hangs, and nothing stays
// booked.
func TestChurnUnderLoad(t *testing.T) {
	rs := replicas(t, 5)
	mr := newDirectory("churn", state("", rs...))
	m := newMeter(t)
	cc := dial(t, "churn:///x", grpc.WithResolvers(mr), m.option, client.WithConfig(config(`{"prefix_cache_affinity":{}}`, `"max_ongoing_requests":4`)))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	var stop atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for w := range 16 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				text := strings.Repeat(fmt.Sprint(w, i%10), 100)
				if _, err := stub.UnaryCall(deadlineOf(20*time.Second), simple(text)); err != nil {
					t.Errorf("unary: %v", err)
				}
				if _, err := read(stub.StreamingOutputCall(deadlineOf(20*time.Second), prompt(text))); err != nil {
					t.Errorf("stream: %v", err)
				}
				calls.Add(2)
			}
		})
	}
	for i := range 60 {
		goal := calls.Load() + 20
		eventually(t, "calls go on", func() bool { return calls.Load() >= goal || t.Failed() })
		mr.set(state("", append(append([]*replica{}, rs[i%3:i%3+2]...), rs[4])...))
	}
	stop.Store(true)
	wg.Wait()
	require.Zero(t, m.ongoing(t))
	require.Zero(t, m.sum(t, "warmpath.queue.length"))
}

// In a fleet too large for a connection each, only those picked are connected,
// and every session reaches its agreed replica.
func TestLargeFleetConnectsOnDemand(t *testing.T) {
	rs := replicas(t, 6)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refused := l.Addr().String()
	require.NoError(t, l.Close())
	_, port, err := net.SplitHostPort(refused)
	require.NoError(t, err)
	all := make([]*replica, 0, 1100)
	all = append(all, rs...)
	for i := len(all); i < cap(all); i++ { // addresses of loopback where nobody listens
		all = append(all, &replica{addr: fmt.Sprintf("127.1.%d.%d:%s", i/250, i%250+1, port)})
	}
	require.Greater(t, len(all), balancer.EagerConnections)
	live := make(map[string]*replica)
	for _, r := range rs {
		live[r.addr] = r
	}
	// Sessions whose first replica is one that lives, and some whose is not.
	var home, dead []string
	for i := 0; len(home) < 6 || len(dead) < 3; i++ {
		require.Less(t, i, 20000)
		s := fmt.Sprint("user ", i)
		if live[ringFirst(t, all, s)] != nil {
			home = append(home, s)
		} else if len(dead) < 3 {
			dead = append(dead, s)
		}
	}
	mr := newDirectory("large", state("", all...))
	h := &conns{}
	m := newMeter(t)
	cc := dial(t, "large:///x", grpc.WithResolvers(mr), m.option, grpc.WithStatsHandler(h), client.WithConfig(config(`{"consistent_hash":{}}`)))
	for _, s := range home {
		for range 3 {
			require.Equal(t, ringFirst(t, all, s), where(t, client.WithSession(deadline(t), s), cc, ""))
		}
	}
	require.EqualValues(t, 3*len(home), m.sum(t, "warmpath.decisions"), "one decision a call")
	require.LessOrEqual(t, h.begun.Load(), int64(len(rs)), "nobody else was connected")
	for _, s := range dead {
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithSession(deadline(t), s), simple(""))
		require.Contains(t, []codes.Code{codes.OK, codes.Unavailable}, status.Code(err), "%v", err)
	}
	require.Zero(t, m.ongoing(t))
	require.Equal(t, connectivity.Ready, cc.GetState())

	// The fleet shrinks below the boundary: now all are connected; and grows again.
	mr.set(state("", rs...))
	connected(t, cc, rs)
	mr.set(state("", all...))
	for _, s := range home {
		require.Equal(t, ringFirst(t, all, s), where(t, client.WithSession(deadline(t), s), cc, ""))
	}
	require.EqualValues(t, len(rs), h.begun.Load(), "connections that were open stayed")
	require.Zero(t, m.ongoing(t))
}

// Each call waits for the connection of its own replica: a policy without a key
// does not open one after another.
func TestLargeFleetRoundRobin(t *testing.T) {
	rs := replicas(t, 8)

	s := state("", rs...)
	for i := range balancer.EagerConnections { // as many again that are draining
		s.Endpoints = append(s.Endpoints, fleet.Endpoint(fleet.Replica{ID: fmt.Sprint("d", i), Address: fmt.Sprintf("127.2.%d.%d:9", i/250, i%250+1), Draining: true}))
	}

	mr := newDirectory("wander", s)
	h := &conns{}
	cc := dial(t, "wander:///x", grpc.WithResolvers(mr), grpc.WithStatsHandler(h), roundRobin())
	for i := range len(rs) {
		where(t, deadline(t), cc, "")
		require.EqualValues(t, i+1, h.begun.Load(), "one connection a call")
	}
}

// Servers that end their connections at a certain age are reconnected to at once,
// used or not, and no call fails for it.
func TestReconnectsAfterGoAway(t *testing.T) {
	rs := make([]*replica, 2)
	for i := range rs {
		rs[i] = start(t, &replica{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 50 * time.Millisecond, MaxConnectionAgeGrace: 10 * time.Second}))
	}
	h := &conns{}
	m := newMeter(t)
	cc := dial(t, target(rs...), grpc.WithStatsHandler(h), m.option, client.WithConfig(config(`{"prefix_cache_affinity":{}}`)))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	for begun := h.begun.Load(); h.begun.Load() < begun+10; {
		_, err := stub.UnaryCall(deadline(t), simple("x"))
		require.NoError(t, err)
		_, err = read(stub.StreamingOutputCall(deadline(t), prompt("x")))
		require.NoError(t, err)
	}
	quiet := h.begun.Load()
	eventually(t, "reconnected without calls", func() bool { return h.begun.Load() >= quiet+4 })
	require.Zero(t, m.ongoing(t))
}
