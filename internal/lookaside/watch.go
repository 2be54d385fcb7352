// Package lookaside is the client's side of a look-aside server. The watch gives a channel its replicas, its policy,
// the peer load and what the replicas have cached, and reports to the server what the channel has reserved.
//
// The rule. A [Watch] belongs to the resolver of one channel and lives as long. It follows one of the servers at a time
// (WatchReplicas), beginning with the one that rendezvous hashing of the deployment's name puts first. When that is
// lost it goes on to the next at once, and after a round of all of them waits, longer each time, with jitter. As soon
// as a better server can be reached again it goes back there, so that clients share one view. The balancer finds the
// Watch in the resolver's state and attaches its Router: that gets peer load and caches, and its reservations are
// reported.
//
// What is known stays until something better is known. Nothing that a server does, or fails to do, takes a connected
// replica away while none that it names is connected. Beyond that, a server that is new or was restarted has
// [Timing.Grace] to learn all replicas: those that it does not name yet stay. Peer load is in force as long as the
// server sends anything. After a change of server it stays as it was until the next one has counted a report of this
// client and has the load of one replica at least; without that it fades to nothing. Caches stay as they are until the
// next server's snapshot.
//
// Load. A server's sum contains this client's own load, as of the last report that the server had counted. The ledger
// remembers every report until it is counted, and subtracts exactly that: the load of peers is exact as of the update,
// and the own load comes from the Routers. What remains is damped by
// [github.com/warmpath/warmpath/internal/router/load.Damping].
//
// Complexity. A report is linear in the replicas, an update in what it carries and, where it has load, in the
// replicas. One connection, two goroutines and, while a server is followed, two more.
//
// Source: proto/warmpath/v1.
package lookaside

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/target"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Options are what to watch, and how. Servers, Dial and the functions are needed.
type Options struct {
	Servers    []string // host:port
	Deployment string   // empty = the server's only one
	// Dial is how to reach a server: credentials at least.
	Dial   []grpc.DialOption
	Logger *slog.Logger // nil = slog.Default()
	// Known is what was known before, by another Watch of the same target; nil = nothing.
	Known *State
	// Changed is called with a new State, by one goroutine at a time, and with Known first, from within Start.
	Changed func(*Watch, State)
	// Failed is called with the reason why nothing is known yet, each time that all servers were tried.
	Failed func(error)
	Timing Timing
}

// A State is what a channel has to know to make calls. It is not written again.
type State struct {
	Replicas []policy.Attributes
	// ServiceConfig is a gRPC service config in JSON; empty = the server has sent none.
	ServiceConfig string
}

// Timing holds the times that a Watch goes by; the zero Timing is the default.
type Timing struct {
	// Silence is how long a server may send nothing before it counts as lost: 5 s. It sends something every second.
	Silence time.Duration
	// Step is how often what follows from time alone is applied: 250 ms.
	Step time.Duration
	// Grace is how long replicas stay that a new server does not name: 30 s.
	Grace time.Duration
	// Retry is the first wait between two rounds of all servers: 200 ms. It doubles, up to maxRetry.
	Retry time.Duration
	// Return is how long a better server is left alone after it was lost: 10 s.
	Return time.Duration
}

// fadeAfter is the silence after which peer load is halved at each Step.
const fadeAfter = 2 * time.Second

var defaultTiming = Timing{
	Silence: 5 * time.Second, Step: 250 * time.Millisecond, Grace: 30 * time.Second, Retry: 200 * time.Millisecond,
	Return: 10 * time.Second,
}

// A Watch follows the look-aside servers of one channel. Safe for use by many goroutines.
type Watch struct {
	o       Options
	ctx     context.Context
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	view    *view
	central *Central

	servers []*server // of run alone
}

// Start begins to watch. Options.Known is passed to Options.Changed from within. It fails where a connection to one of
// the servers cannot be made with Options.Dial.
func Start(o Options) (*Watch, error) {
	o.Timing = cmp.Or(o.Timing, defaultTiming)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	w := newWatch(o)
	for _, address := range Rank(o.Servers, o.Deployment) {
		s := &server{address: address, opts: o.Dial}
		if err := s.open(); err != nil {
			w.closeServers()
			return nil, err
		}
		w.servers = append(w.servers, s)
	}
	if o.Known != nil {
		w.view.recall(*o.Known)
		w.view.publish()
	}
	w.ended.Go(w.run)
	w.ended.Go(w.tick)
	return w, nil
}

func newWatch(o Options) *Watch {
	w := &Watch{o: o, central: newCentral(o.Deployment)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.view = newView(&w.o, crand.Text(), w.central)
	w.view.changed = func(s State) { w.o.Changed(w, s) }
	return w
}

// Close ends the watch. After it returns, no function of the options is called.
func (w *Watch) Close() {
	w.cancel()
	w.ended.Wait()
}

// Attach gives a Router load, caches and ejections from now on, and reports its reservations. The Router's fleet must
// have been set. detach ends it, and takes back what was given.
func (w *Watch) Attach(r *router.Router) (detach func()) {
	w.view.attach(r)
	return sync.OnceFunc(func() { w.view.detach(r) })
}

// Central returns what asks the servers of the watch for replicas.
func (w *Watch) Central() *Central {
	w.central.open()
	return w.central
}

// tick applies what follows from time alone: replicas that need not stay go, and peer load fades while it is unknown.
func (w *Watch) tick() {
	for now := range pause.Every(w.ctx, w.o.Timing.Step) {
		w.view.tick(now)
		w.view.publish()
	}
}

type stateKey struct{}

// SetWatch returns the resolver state with the channel's Watch in it.
func SetWatch(s resolver.State, w *Watch) resolver.State {
	s.Attributes = s.Attributes.WithValue(stateKey{}, w)
	return s
}

// From returns the Watch in a resolver's state, or nil.
func From(s resolver.State) *Watch {
	w, _ := s.Attributes.Value(stateKey{}).(*Watch)
	return w
}

// Rank returns the servers in the order in which a deployment prefers them: rendezvous hashing, so that all clients
// agree and a server that is lost sends its deployments to all others alike.
func Rank(servers []string, deployment string) []string {
	score := func(s string) uint64 { return xxh3.HashString(deployment + "\x00" + s) }
	ranked := slices.Clone(servers)
	slices.SortFunc(ranked, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(b), score(a)), cmp.Compare(a, b))
	})
	return slices.Compact(ranked)
}

// A server is one of the servers and the connection to it.
type server struct {
	address string
	opts    []grpc.DialOption
	conn    *grpc.ClientConn // connects when it is used
	rest    time.Time        // it is not returned to before
}

const (
	maxMessage = 16 << 20    // what a server may send at once, in bytes
	maxRetry   = time.Second // the longest wait between two rounds of all servers
)

// open makes the connection anew. One to a server that hangs would not show when the server is back.
func (s *server) open() error {
	conn, err := grpc.NewClient("dns:///"+s.address, append([]grpc.DialOption{
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		target.Reconnect(200*time.Millisecond, 2*time.Second),
	}, s.opts...)...)
	if err != nil {
		return err
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.conn = conn
	return nil
}

func (w *Watch) closeServers() {
	for _, s := range w.servers {
		_ = s.conn.Close() // its streams have ended
	}
}

// errSilent is the end of a stream on which nothing comes any more.
var errSilent = errors.New("it sends nothing any more")

// run follows one server after the other.
func (w *Watch) run() {
	defer w.closeServers()
	at, tries := 0, 0 // tries since the last message of a server
	for w.ctx.Err() == nil {
		next, answered, err := w.follow(at)
		if answered {
			tries = 0
		}
		switch {
		case w.ctx.Err() != nil:
			return
		case err == nil:
			at = next
			continue
		}
		w.lost(w.servers[at], err, tries == 0)
		tries++
		if at = (at + 1) % len(w.servers); tries%len(w.servers) > 0 {
			continue
		}
		if !w.view.known() {
			w.o.Failed(fmt.Errorf("warmpath: no look-aside server has named the replicas of %q: %w", w.o.Deployment, err))
		}
		d := min(w.o.Timing.Retry<<min(tries/len(w.servers)-1, 10), maxRetry)
		_ = pause.For(w.ctx, d/2+rand.N(d)) // the loop sees the end
	}
}

// lost notes that a server cannot be followed.
func (w *Watch) lost(s *server, err error, first bool) {
	s.rest = time.Now().Add(w.o.Timing.Return)
	if errors.Is(err, errSilent) {
		_ = s.open() // where that fails the connection stays
	}
	if first {
		w.o.Logger.Warn("warmpath: the look-aside server cannot be followed; what is known of the replicas stays",
			"server", s.address, "deployment", w.o.Deployment, "error", err)
	}
}

// better returns the first of the servers before one that has rested and can be reached; ok is false if there is none.
func (w *Watch) better(at int) (i int, ok bool) {
	for i, s := range w.servers[:at] {
		s.conn.Connect() // where that is not under way
		if time.Now().After(s.rest) && s.conn.GetState() == connectivity.Ready {
			return i, true
		}
	}
	return 0, false
}

type update = warmpathv1.WatchReplicasResponse

// watchStream is one watch of one server: it receives updates and sends reports.
type watchStream struct {
	view     *view
	stream   warmpathv1.RoutingService_WatchReplicasClient
	interval time.Duration // between two updates of the load
	sent     time.Time     // the last report
}

// follow watches a server until that ends, and returns why; nil where another watch of the server next is to follow.
func (w *Watch) follow(at int) (next int, answered bool, err error) {
	ctx, cancel := context.WithCancelCause(w.ctx)
	defer cancel(nil)
	// A server that hangs does not read either: whatever blocks ends with ctx.
	silence := time.AfterFunc(w.o.Timing.Silence, func() { cancel(errSilent) })
	defer silence.Stop()
	cc := w.servers[at].conn
	s := &watchStream{view: w.view, interval: firstInterval}
	if s.stream, err = warmpathv1.NewRoutingServiceClient(cc).WatchReplicas(ctx); err != nil {
		cancel(err) // the cause, unless there is one
		return at, false, context.Cause(ctx)
	}
	// Where this fails, what is received shows why.
	_ = s.stream.Send(&warmpathv1.WatchReplicasRequest{Start: w.view.start()})
	messages := make(chan *update)
	w.ended.Go(func() { cancel(s.receive(ctx, messages)) })
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case m := <-messages:
			silence.Reset(w.o.Timing.Silence)
			w.view.take(m, !answered)
			if !answered {
				w.o.Logger.Info("warmpath: following a look-aside server",
					"server", w.servers[at].address, "deployment", w.o.Deployment)
				s.report()
				timer.Reset(s.interval)
				w.ended.Go(func() { w.central.serve(ctx, cc, w.o.Timing.Retry) })
			}
			answered = true
			if u := m.GetLoad(); u != nil {
				timer.Reset(s.schedule(u))
			}
		case <-timer.C:
			s.report()
			timer.Reset(min(s.interval, renewAfter))
			if i, ok := w.better(at); ok {
				return i, answered, nil
			}
		case <-w.view.resync:
			return at, answered, nil
		case <-ctx.Done():
			return at, answered, context.Cause(ctx)
		}
	}
}

// receive passes the server's messages on, until ctx or the stream ends. It returns why.
func (s *watchStream) receive(ctx context.Context, to chan<- *update) error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const (
	// firstInterval is the time between reports until the server sets it.
	firstInterval = 100 * time.Millisecond
	// renewAfter is the time after which load is reported although it has not changed.
	renewAfter = 900 * time.Millisecond
)

// schedule is the time from an update to the next report: in the last tenth of the interval, so that the next update
// contains the newest reservations. The end of it is left for the way. Where no update comes, the reports keep their
// place in the interval.
func (s *watchStream) schedule(u *warmpathv1.LoadUpdate) time.Duration {
	next := min(time.Duration(u.GetNextMs())*time.Millisecond, time.Minute)
	// The first update comes in the midst of an interval.
	s.interval = max(next, s.interval/2, time.Millisecond)
	return min(max(next-s.interval/10, 0)+rand.N(s.interval/10)*8/10, renewAfter)
}

// report sends the server what has changed. An error shows in what is received.
func (s *watchStream) report() {
	now := time.Now()
	renew := now.Sub(s.sent) >= renewAfter
	m := s.view.report(renew)
	if m.Reservations != nil || renew {
		s.sent = now
	}
	if m.Reservations != nil || m.Routes != nil || m.Outcomes != nil || m.Decisions != nil {
		_ = s.stream.Send(m)
	}
}
