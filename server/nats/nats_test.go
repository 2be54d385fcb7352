package nats_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
	_ "github.com/warmpath/warmpath/server/nats"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// NATS caches the host's processes and random numbers in goroutines that never end.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/pse.periodic"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"),
	)
}

// logs collects what a server logs.
type logs struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// node is one server of a cluster, on the loopback.
type node struct {
	*server.Server
	address string
	routing warmpathv1.RoutingServiceClient
	status  warmpathv1.StatusServiceClient
	logs    *logs
	stop    func()
}

const deployments = `
deployments:
  chat:
    policy: {kv_aware: {}}
    register: true
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}]
`

// runNATS starts a NATS on the loopback, with JetStream.
func runNATS(t testing.TB, check natsserver.Authentication) *natsserver.Server {
	t.Helper()
	return serveNATS(t, &natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true,
		CustomClientAuthentication: check,
	})
}

func serveNATS(t testing.TB, o *natsserver.Options) *natsserver.Server {
	t.Helper()
	n, err := natsserver.NewServer(o)
	require.NoError(t, err)
	go n.Start()
	t.Cleanup(func() {
		n.Shutdown()
		n.WaitForShutdown()
	})
	require.True(t, n.ReadyForConnections(time.Minute))
	return n
}

// joined is the config of a server that shares its view over a NATS.
func joined(nats *natsserver.Server) string {
	return fmt.Sprintf("cluster: {nats: {url: 'nats://%s'}}\n%s", nats.Addr(), deployments)
}

func start(t testing.TB, config string) *node {
	t.Helper()
	c, err := server.ParseConfig([]byte(config))
	require.NoError(t, err)
	n := &node{logs: new(logs)}
	n.Server, err = server.New(c, server.Options{Logger: slog.New(slog.NewTextHandler(n.logs, nil))})
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n.address = lis.Addr().String()
	served := make(chan error, 1)
	go func() { served <- n.Serve(lis) }()
	conn, err := grpc.NewClient(n.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	n.routing, n.status = warmpathv1.NewRoutingServiceClient(conn), warmpathv1.NewStatusServiceClient(conn)
	n.stop = sync.OnceFunc(func() {
		_ = conn.Close()
		n.Close()
		require.NoError(t, <-served)
	})
	t.Cleanup(n.stop)
	return n
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// deployment is a node's state of its deployment.
func (n *node) deployment(t testing.TB) *warmpathv1.DeploymentStatus {
	t.Helper()
	a, err := n.status.GetStatus(soon(t), &warmpathv1.GetStatusRequest{Deployment: "chat"})
	require.NoError(t, err)
	return a.GetDeployments()[0]
}

// agrees waits until a node has n peers, all in sync.
func (n *node) agrees(t testing.TB, peers int) {
	t.Helper()
	require.Eventually(t, func() bool {
		c := n.deployment(t).GetCluster()
		for _, p := range c.GetPeers() {
			if !p.GetInSync() || !p.GetSameConfig() {
				return false
			}
		}
		return len(c.GetPeers()) == peers && c.GetConnected()
	}, time.Minute, 20*time.Millisecond, "%v", n.logs)
}

func (n *node) ongoing(t testing.TB) (all int) {
	for _, r := range n.deployment(t).GetReplicas() {
		all += int(r.GetOngoing())
	}
	return all
}

func (n *node) reserve(t testing.TB) string {
	t.Helper()
	a, err := n.routing.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{
		Mode: warmpathv1.PickMode_PICK_MODE_RESERVE,
		Key:  &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: "hello"}},
	})
	require.NoError(t, err)
	return a.GetReservation().GetId()
}

// Servers share load and registrations. A server that ends takes its load away, and a server that joins gets what the
// others have.
func TestServersShareTheirView(t *testing.T) {
	nats := runNATS(t, nil)
	a, b := start(t, joined(nats)), start(t, joined(nats))
	a.agrees(t, 1)
	b.agrees(t, 1)
	id := a.reserve(t)
	require.Eventually(t, func() bool { return b.ongoing(t) == 1 }, time.Minute, 5*time.Millisecond)
	_, err := a.routing.Register(soon(t), &warmpathv1.RegisterRequest{
		Replica: &warmpathv1.Replica{Address: "10.0.0.9:1"}, LeaseMs: 600_000,
	})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(b.deployment(t).GetReplicas()) == 3 }, time.Minute, 5*time.Millisecond)

	c := start(t, joined(nats))
	c.agrees(t, 2)
	require.Eventually(t, func() bool {
		return c.ongoing(t) == 1 && len(c.deployment(t).GetReplicas()) == 3
	}, time.Minute, 5*time.Millisecond)

	_, err = a.routing.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{
		{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED},
	}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.ongoing(t) == 0 }, time.Minute, 5*time.Millisecond)
	a.reserve(t)
	require.Eventually(t, func() bool { return c.ongoing(t) == 1 }, time.Minute, 5*time.Millisecond)
	a.stop()
	require.Eventually(t, func() bool { return c.ongoing(t) == 0 }, time.Minute, 5*time.Millisecond)
	c.agrees(t, 1)
	require.Contains(t, c.logs.String(), "another server left")
	require.Len(t, c.deployment(t).GetReplicas(), 3, "what registered with it stays for its lease")
}

// openBus opens the bus of a server, and returns the store on it.
func openBus(t testing.TB, config string) (cluster.Bus, policy.Store) {
	t.Helper()
	c, err := server.ParseConfig([]byte(config))
	require.NoError(t, err)
	b, err := cluster.Open(c.Cluster, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return b, b.Store("chat")
}

// patient is a store whose calls are repeated until the servers of NATS answer: they elect a leader at first, and when
// the machine has stood still.
type patient struct {
	policy.Store
	t testing.TB
}

func (p patient) answered(call func() error) (err error) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		err = call()
		return err == nil || errors.Is(err, policy.ErrNotFound) || errors.Is(err, policy.ErrConflict) || errors.Is(err, policy.ErrInvalid)
	}, 2*time.Minute, 10*time.Millisecond, "%v", &err)
	return err
}

func (p patient) Get(ctx context.Context, key string) (e policy.Entry, err error) {
	err = p.answered(func() (err error) { e, err = p.Store.Get(ctx, key); return err })
	return e, err
}

func (p patient) Set(ctx context.Context, key string, value []byte, ttl time.Duration) (version uint64, err error) {
	err = p.answered(func() (err error) { version, err = p.Store.Set(ctx, key, value, ttl); return err })
	return version, err
}

func (p patient) CompareAndSet(ctx context.Context, key string, version uint64, value []byte, ttl time.Duration) (made uint64, err error) {
	tries := 0
	err = p.answered(func() (err error) {
		tries++
		made, err = p.Store.CompareAndSet(ctx, key, version, value, ttl)
		return err
	})
	if tries > 1 && errors.Is(err, policy.ErrConflict) { // a try without an answer may have written it
		if e, _ := p.Get(ctx, key); string(e.Value) == string(value) {
			return e.Version, nil
		}
	}
	return made, err
}

func (p patient) Delete(ctx context.Context, key string) error {
	return p.answered(func() error { return p.Store.Delete(ctx, key) })
}

// A store has the semantics of the one in memory, and the servers share it.
func TestStore(t *testing.T) {
	ctx := soon(t)
	nats, all := runNATS(t, nil), make([]policy.Store, 3)
	for i := range all {
		b, s := openBus(t, joined(nats))
		defer b.Close()
		all[i] = s
	}
	x, y := patient{all[0], t}, patient{all[1], t}
	first, err := x.Set(ctx, "key/with any * byte", []byte("one"), time.Minute)
	require.NoError(t, err)
	e, err := y.Get(ctx, "key/with any * byte")
	require.NoError(t, err)
	require.Equal(t, "one", string(e.Value))
	require.Equal(t, first, e.Version)
	require.InDelta(t, time.Minute, e.TTL, float64(time.Minute/2))
	second, err := y.CompareAndSet(ctx, "key/with any * byte", first, []byte("two"), time.Minute)
	require.NoError(t, err)
	require.Greater(t, second, first)
	for _, stale := range []uint64{0, first, second + 1} {
		_, err = x.CompareAndSet(ctx, "key/with any * byte", stale, []byte("three"), 0)
		require.ErrorIs(t, err, policy.ErrConflict)
	}
	_, err = x.Get(ctx, "none")
	require.ErrorIs(t, err, policy.ErrNotFound)
	_, err = x.Set(ctx, "", nil, 0)
	require.ErrorIs(t, err, policy.ErrInvalid)
	_, err = x.Set(ctx, "k", make([]byte, 64<<10+1), 0)
	require.ErrorIs(t, err, policy.ErrInvalid)
	require.NoError(t, y.Delete(ctx, "key/with any * byte"))
	_, err = x.Get(ctx, "key/with any * byte")
	require.ErrorIs(t, err, policy.ErrNotFound)
	third, err := x.CompareAndSet(ctx, "key/with any * byte", 0, []byte("new"), 0)
	require.NoError(t, err)
	require.Greater(t, third, second, "no version comes twice")

	_, err = x.Set(ctx, "short", []byte("v"), 50*time.Millisecond)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := y.Get(ctx, "short")
		return errors.Is(err, policy.ErrNotFound)
	}, time.Minute, 5*time.Millisecond)
	_, err = y.CompareAndSet(ctx, "short", 0, []byte("w"), time.Minute)
	require.NoError(t, err, "it has expired")

	var counted sync.WaitGroup
	var unsure atomic.Int64 // writes that got no answer in time: they may have been made
	for i := range 3 {
		counted.Go(func() {
			s := all[i]
			for n := 0; n < 20 && ctx.Err() == nil; {
				e, err := s.Get(ctx, "n")
				if err != nil && !errors.Is(err, policy.ErrNotFound) {
					continue // the servers elect a leader
				}
				count, _ := strconv.Atoi(string(e.Value))
				switch _, err := s.CompareAndSet(ctx, "n", e.Version, []byte(strconv.Itoa(count+1)), 0); {
				case err == nil:
					n++
				case !errors.Is(err, policy.ErrConflict):
					unsure.Add(1)
				}
			}
		})
	}
	counted.Wait()
	e, err = y.Get(ctx, "n")
	require.NoError(t, err)
	count, err := strconv.Atoi(string(e.Value))
	require.NoError(t, err)
	require.GreaterOrEqual(t, count, 60)
	require.LessOrEqual(t, count, 60+int(unsure.Load()))
}

// Without NATS the calls of the store are UNAVAILABLE, and a read is no miss.
func TestStoreWithoutNATSIsUnavailable(t *testing.T) {
	n := start(t, "cluster: {nats: {url: 'nats://127.0.0.1:1'}}\n"+deployments)
	conn, err := grpc.NewClient(n.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	store, ctx := warmpathv1.NewStoreServiceClient(conn), soon(t)
	_, get := store.Get(ctx, &warmpathv1.GetRequest{Key: "k"})
	_, set := store.Set(ctx, &warmpathv1.SetRequest{Key: "k"})
	_, cas := store.CompareAndSet(ctx, &warmpathv1.CompareAndSetRequest{Key: "k"})
	_, del := store.Delete(ctx, &warmpathv1.DeleteRequest{Key: "k"})
	for _, err := range []error{get, set, cas, del} {
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
}

func TestConfig(t *testing.T) {
	for text, want := range map[string]string{
		"cluster: {nats: {}}":                   "cluster.nats.url: want nats://host:4222",
		"cluster: {nats: {creds: f}}":           "cluster.nats.url",
		"cluster: {nats: {url: x, embed: {}}}":  "embed",
		"cluster: {nats: {url: x, creds: [f]}}": "creds",
	} {
		_, err := server.ParseConfig([]byte(text + deployments))
		require.ErrorContains(t, err, want, text)
	}
}
