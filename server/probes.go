package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/health"
	"github.com/warmpath/warmpath/internal/loadpoll"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/target"
)

const (
	// probeTimeout is how long the answer to a check or a poll may take.
	probeTimeout = time.Second
	// maxFailures is how many checks in a row may fail before the replica does not serve.
	maxFailures = 2
	// pollInterval is how often each replica is asked for its load, maxPollInterval how often one that does not answer.
	pollInterval, maxPollInterval = 500 * time.Millisecond, 10 * time.Second
	// maxWhy bounds an error that is kept, in bytes.
	maxWhy = 300
)

// A poller asks the members something.
type poller interface {
	SetFleet([]policy.Attributes)
	Close()
}

// poll has a poller ask the members until the context ends. name is another one for each poller.
func (d *deployment) poll(ctx context.Context, name string, p poller) {
	d.mu.Lock()
	d.pollers[name] = p
	d.repoll()
	d.mu.Unlock()
	<-ctx.Done()
	d.mu.Lock()
	delete(d.pollers, name)
	d.mu.Unlock()
	p.Close()
}

// repoll gives the members to the pollers. Called with mu held.
func (d *deployment) repoll() {
	if len(d.pollers) == 0 {
		return
	}
	all := make([]policy.Attributes, len(d.roster.order))
	for i, m := range d.roster.order {
		all[i] = m.Attributes
	}
	for _, p := range d.pollers {
		p.SetFleet(all)
	}
}

// pollLoad polls the load of the members until the context ends, where the config has it.
func (d *deployment) pollLoad(ctx context.Context, c *Deployment) {
	if c.LoadPoll == "" {
		return
	}
	source, _ := loadpoll.Parse(c.LoadPoll, c.LoadPages) // the config was checked
	defer source.Close()
	d.poll(ctx, "load_poll", loadpoll.New(loadpoll.Options[load.Report]{
		Interval: pollInterval, Longest: maxPollInterval, Timeout: probeTimeout,
		Ask: func(ctx context.Context, r policy.Attributes) (load.Report, error) {
			return source.Ask(ctx, r, d.conns.connect)
		},
		Report: func(r policy.Attributes, l load.Report, err error) {
			if err != nil {
				d.tally.pollsFailed.Add(1)
			}
			d.update(func(x *sources) bool { x.poll(r.ID, l, err); return false })
		},
	}))
}

// poll enters the polled load of a replica, or why there is none, which is logged once.
func (x *sources) poll(id string, l load.Report, err error) {
	m := x.roster.byID[id]
	if m == nil || x.config.LoadPoll == "" {
		return
	}
	was := m.pollProblem
	if err != nil {
		m.pollProblem = strings.ToValidUTF8(fmt.Sprintf("its load cannot be polled: %.*s", maxWhy, err), "?")
		if was == "" {
			x.log.Warn("warmpath: the load of a replica cannot be polled", "replica", id, "error", err)
		}
		return
	}
	if m.pollProblem = ""; was != "" {
		x.log.Info("warmpath: a replica reports its load again", "replica", id)
	}
	m.polled = ownLoad{replicaLoad{int64(min(l.Ongoing, maxOngoing)), l.QueuedTokens}, x.now()}
	if l.KVTokens != 0 && l.KVTokens != m.kvTokens {
		m.kvTokens = l.KVTokens
		x.touch(id)
	}
}

// checkHealth checks the health of the members until the context ends; interval 0: not at all. What was found with
// another config stays: a replica that does not answer is not put back into service by a reload.
func (d *deployment) checkHealth(ctx context.Context, interval time.Duration) {
	if interval == 0 {
		d.update(func(x *sources) bool {
			for _, m := range x.roster.order {
				m.health = healthChecks{}
			}
			x.whole = true
			return true
		})
		return
	}
	d.poll(ctx, "health_check", loadpoll.New(loadpoll.Options[struct{}]{
		Interval: interval, Longest: interval, Timeout: probeTimeout,
		Ask: func(ctx context.Context, r policy.Attributes) (struct{}, error) {
			return struct{}{}, d.check(ctx, r.ID)
		},
		Report: func(r policy.Attributes, _ struct{}, err error) {
			d.update(func(x *sources) bool { return x.checked(r, err) })
		},
	}))
}

// check checks a replica. One that reports its own state is not asked.
func (d *deployment) check(ctx context.Context, id string) error {
	if d.registered(id) {
		return nil
	}
	conn, err := d.conns.connect(ctx, id)
	if err != nil {
		return err
	}
	return health.Check(ctx, conn, "")
}

// registered reports whether a replica has registered itself.
func (d *deployment) registered(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sources.registered[id] != nil
}

// healthChecks are those of one replica.
type healthChecks struct {
	failures int       // in a row
	since    time.Time // when it ceased to serve
	why      string    // the evidence
}

// unwell reports whether the replica does not serve.
func (h *healthChecks) unwell() bool { return h.failures >= maxFailures }

// checked enters the result of a check, and reports whether the replica ceases to serve by it, or serves again. A
// replica that has registered in the meantime reports its own state.
func (x *sources) checked(r policy.Attributes, err error) (changed bool) {
	m := x.roster.byID[r.ID]
	gone := errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
	if m == nil || m.Address != r.Address || x.registered[r.ID] != nil || gone {
		return false
	}
	h, was := &m.health, m.health.unwell()
	var own health.NotServing
	switch s := status.Convert(err); {
	case err == nil:
		*h = healthChecks{}
	case errors.As(err, &own):
		h.failures, h.why = maxFailures, own.Error()
	default:
		h.failures++
		h.why = strings.ToValidUTF8(fmt.Sprintf("%v: %.*s", s.Code(), maxWhy, s.Message()), "?")
	}
	switch {
	case h.unwell() && !was:
		h.since = x.now()
		x.log.Warn("warmpath: a replica does not serve", "replica", r.ID, "address", r.Address, "why", h.why)
	case was && !h.unwell():
		x.log.Info("warmpath: a replica serves again", "replica", r.ID, "address", r.Address)
	}
	changed = was != h.unwell()
	x.whole = x.whole || changed
	return changed
}

// mark takes the replicas that do not serve out of use, unless no other would be left.
func mark(all []described, unwell func(id string) bool) {
	is := func(m *described) bool { return !m.Draining && unwell(m.ID) }
	well := false
	for i := range all {
		well = well || !all[i].Draining && !is(&all[i])
	}
	for i := range all {
		if well && is(&all[i]) {
			all[i].Draining, all[i].marked = true, true
		}
	}
}

// replicaConns are the server's own connections to a deployment's replicas: for health checks, load and KV events.
type replicaConns struct {
	// mu guards what follows; nothing is locked under it.
	mu       sync.Mutex
	certs    *certificates      // nil = in plaintext
	replicas map[string]*member // by id
	open     map[string]*grpc.ClientConn
}

// secure puts other certificates into force, nil = plaintext, and closes the connections made with those before.
func (c *replicaConns) secure(certs *certificates) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.certs = certs
	for id := range c.open {
		c.drop(id)
	}
}

// drop closes the connection to a replica, if there is one. Called with mu held.
func (c *replicaConns) drop(id string) {
	if conn := c.open[id]; conn != nil {
		_ = conn.Close()
		delete(c.open, id)
	}
}

// change follows a change of the fleet: it closes the connections to replicas that have left or moved.
func (c *replicaConns) change(of fleetChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replicas == nil {
		c.replicas = make(map[string]*member)
	}
	for _, x := range of.changed {
		if x.is.Address != x.was.Address || x.is.ServerName != x.was.ServerName {
			c.drop(x.is.ID)
		}
		c.replicas[x.is.ID] = x.is
	}
	for _, m := range of.joined {
		c.replicas[m.ID] = m
	}
	for _, m := range of.left {
		c.drop(m.ID)
		delete(c.replicas, m.ID)
	}
}

// connect returns the connection to a replica; context.Canceled = there is no such replica.
func (c *replicaConns) connect(ctx context.Context, id string) (grpc.ClientConnInterface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.open[id]; conn != nil {
		return conn, nil
	}
	if c.replicas[id] == nil {
		return nil, context.Canceled
	}
	conn, err := dialReplica(c.replicas[id].described, c.certs)
	if err != nil {
		return nil, err
	}
	if c.open == nil {
		c.open = make(map[string]*grpc.ClientConn)
	}
	c.open[id] = conn
	return conn, ctx.Err()
}

func (c *replicaConns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.open {
		c.drop(id)
	}
	c.replicas = nil
}

// dialReplica returns the server's own connection to a replica. gRPC reconnects it every few seconds.
func dialReplica(m described, certs *certificates) (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if certs != nil {
		secure = &rotating{credentials.NewTLS(certs.now()), certs}
	}
	return grpc.NewClient("passthrough:///"+m.Address, grpc.WithTransportCredentials(secure),
		grpc.WithAuthority(m.ServerName), target.Reconnect(500*time.Millisecond, 5*time.Second))
}

// rotating are TLS credentials of a client. Each handshake uses the certificates in force.
type rotating struct {
	credentials.TransportCredentials
	certs *certificates
}

// ClientHandshake implements [credentials.TransportCredentials].
func (r *rotating) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(r.certs.now()).ClientHandshake(ctx, authority, raw)
}

// Clone implements [credentials.TransportCredentials].
func (r *rotating) Clone() credentials.TransportCredentials {
	return &rotating{r.TransportCredentials.Clone(), r.certs}
}
