package server

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second on a connection whose request it did not read to the end.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// quiet is a config with one deployment, whose ticker does not interfere with tests that tick by hand.
const quiet = `
load_interval: 10s
deployments:
  chat:
    policy: {round_robin: {}}
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}, {id: c, address: "10.0.0.3:1"}]
`

var discard = slog.New(slog.DiscardHandler)

// clock is set by hand.
type clock struct {
	mu sync.Mutex // guards at
	at time.Time
}

func newClock() *clock { return &clock{at: time.Unix(1_000_000, 0)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

var tokenForm = regexp.MustCompile(`\btoken: "?([^\s,}"]+)"?`)

// WithTokens returns a config with a token_file in place of each "token: TEXT".
func WithTokens(t testing.TB, config string) string {
	return tokenForm.ReplaceAllStringFunc(config, func(s string) string {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(tokenForm.FindStringSubmatch(s)[1]), 0o600))
		return "token_file: '" + path + "'"
	})
}

func parse(t testing.TB, text string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(WithTokens(t, text)))
	require.NoError(t, err)
	return c
}

// fixture is a server on the loopback.
type fixture struct {
	*Server
	*clock
	pb     warmpathv1.RoutingServiceClient
	conn   *grpc.ClientConn
	served chan error
}

func start(t testing.TB, text string) *fixture {
	t.Helper()
	now := newClock()
	s, err := New(parse(t, text), Options{Logger: discard, now: now.now})
	require.NoError(t, err)
	f := serveFixture(t, s)
	f.clock = now
	return f
}

func serveFixture(t testing.TB, s *Server) *fixture {
	t.Helper()
	f := &fixture{Server: s, served: make(chan error, 1)}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { f.served <- f.Serve(lis) }()
	f.conn, err = grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	f.pb = warmpathv1.NewRoutingServiceClient(f.conn)
	t.Cleanup(func() {
		require.NoError(t, f.conn.Close())
		f.Close()
		require.NoError(t, <-f.served)
	})
	return f
}

func (f *fixture) deployment(name string) *deployment { return (*f.deployments.Load())[name] }

// settle ends the interval in which clients reconnect.
func (f *fixture) settle(name string) {
	d := f.deployment(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.balance.settles = time.Time{}
}

// tick ends an interval.
func (f *fixture) tick(name string) { f.deployment(name).tick(f.Server.now()) }

func (f *fixture) choose(t testing.TB, r *warmpathv1.ChooseReplicaRequest) *warmpathv1.ChooseReplicaResponse {
	t.Helper()
	a, err := f.pb.ChooseReplica(soon(t), r)
	require.NoError(t, err)
	return a
}

// soon is a context for operations that take no time.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// ongoing is what is reserved on each replica.
func (f *fixture) ongoing(name string) map[string]int {
	all := make(map[string]int)
	for _, r := range f.deployment(name).hosted.Load().router.View().Replicas() {
		all[r.ID] = r.Ongoing()
	}
	return all
}

// deploy returns a deployment of a config that belongs to no server and whose tasks do not run.
func deploy(t testing.TB, c *Config, name string, now func() time.Time) *deployment {
	t.Helper()
	d := newDeployment(name, discard, now, func() {}, recorder(t), membership{})
	x, err := d.prepare(c.Deployments[name])
	require.NoError(t, err)
	x.apply(c)
	d.tasks.stop()
	return d
}

// loads is the sum of the clients' reports on each replica, by number.
func (l *ledger) loads() map[uint32]replicaLoad {
	all := make(map[uint32]replicaLoad)
	for _, m := range l.roster.order {
		if m.reported != (replicaLoad{}) {
			all[m.number] = m.reported
		}
	}
	return all
}

// register takes a heartbeat as the service does.
func (d *deployment) register(r *warmpathv1.RegisterRequest, m described) (*warmpathv1.RegisterResponse, error) {
	var a *warmpathv1.RegisterResponse
	var err error
	d.update(func(x *sources) (changed bool) {
		a, changed, err = x.register(r, m)
		return changed
	})
	return a, err
}

// recorder has no meter.
func recorder(t testing.TB) *telemetry.Recorder {
	t.Helper()
	r, err := telemetry.New(nil)
	require.NoError(t, err)
	return r
}
