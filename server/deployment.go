package server

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/loadpoll"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/sharedstore"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A deployment is one fleet with one policy.
type deployment struct {
	name   string
	log    *slog.Logger
	now    func() time.Time
	tally  tally
	picks  picks
	moved  func() // called when the deployment begins or ceases to serve
	conns  replicaConns
	tasks  tasks
	poller atomic.Pointer[loadpoll.Poller] // nil = load is not polled

	wake      signal // given when there may be news for watchers
	unobserve func() // ends the metrics

	// These are replaced under mu and read without it.
	hosted    atomic.Pointer[hosted]
	limits    atomic.Pointer[Config] // its deployments are not read
	catalogue atomic.Pointer[catalogue]

	// mu guards what is below. The locks of leases, conns, wake, moved, the poller and the Router are taken
	// under it.
	mu       sync.Mutex
	sources  sources
	pushed   *warmpathv1.ConfigUpdate
	roster   roster
	balance  balance
	outliers outliers
	watchers int
	closed   bool
	unpolled int64 // polls without an answer of pollers that have ended
}

func newDeployment(
	name string, c Deployment, limits *Config, log *slog.Logger, now func() time.Time, moved func(),
	recorder *telemetry.Recorder,
) (*deployment, error) {
	d := &deployment{name: name, log: log.With("deployment", name), now: now, moved: moved}
	d.sources = sources{deployment: name, log: d.log, now: now}
	d.balance = balance{limits: &d.limits, picks: &d.picks, sources: &d.sources}
	d.picks = picks{
		name: name, log: d.log, now: now, hosted: &d.hosted, tally: &d.tally,
		leases: newLeases(name), store: sharedstore.NewMemory(now),
		recorder: recorder.With(telemetry.KeyDeployment.String(name)),
	}
	x, err := d.prepare(c)
	if err != nil {
		return nil, err
	}
	d.apply(x, limits)
	if d.unobserve, err = d.watchMeters(); err != nil {
		d.close()
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return d, nil
}

// A change is a config that can be put into force without an error.
type change struct {
	config  Deployment
	service string         // the service config for watchers
	router  *router.Router // nil = the Router stays
	secures bool           // certs replaces the certificates in force
	certs   *certificates  // nil = plaintext
}

// prepare builds what a config needs, and puts nothing into force. One goroutine at a time calls it and apply.
func (d *deployment) prepare(c Deployment) (x *change, err error) {
	x = &change{config: c, secures: !reflect.DeepEqual(c.ReplicaTLS, d.sources.config.ReplicaTLS)}
	if x.service, err = serviceConfig(c.Config); err != nil {
		return nil, err
	}
	if x.secures {
		if x.certs, err = openReplicaTLS(c.ReplicaTLS, d.log); err != nil {
			return nil, err
		}
	}
	if !d.hosted.Load().suits(c.Config) {
		if x.router, err = newRouter(c.Config, d.log, d.now); err != nil {
			x.certs.close()
			return nil, err
		}
	}
	return x, nil
}

// discard closes what a change that is not applied has opened.
func (x *change) discard() {
	x.certs.close()
	if x.router != nil {
		_ = x.router.Close()
	}
}

// apply puts a change into force. The Router, with its load and caches, stays unless its own config has changed.
func (d *deployment) apply(x *change, limits *Config) {
	if x.secures {
		d.conns.secure(x.certs)
	}
	// What follows is not under the lock: it may wait for goroutines that take it, as the callbacks of metrics do.
	if before := d.replace(x, limits); before != nil {
		before.close()
	}
	if x.router == nil {
		return
	}
	if err := d.hosted.Load().observe(d.picks.recorder); err != nil {
		d.log.Error("warmpath: metrics of the policy are not recorded", "error", err)
	}
}

// replace returns the Router to be closed with its caches, or nil.
func (d *deployment) replace(x *change, limits *Config) (before *hosted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.hosted.Load()
	if x.router == nil {
		old.adopt(x.config.Config)
	} else {
		next := host(x.router, x.config.Config, old, &d.conns, d.log)
		d.hosted.Store(next)
		before = old
		next.take(d.roster.order)
	}
	if x.service != d.pushed.GetServiceConfig() {
		d.pushed = &warmpathv1.ConfigUpdate{Version: d.pushed.GetVersion() + 1, ServiceConfig: x.service}
	}
	d.sources.configure(x.config)
	d.limits.Store(limits)
	d.picks.leases.limit(limits.MaxReservations)
	if !d.refleet() {
		d.catalogued()
	}
	d.wake.give()
	return before
}

// unregistered are the members that do not report their own health.
func (d *deployment) unregistered() []described {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]described, 0, len(d.roster.order))
	for _, m := range d.roster.order {
		if d.sources.registered[m.ID] == nil {
			all = append(all, m.described)
		}
	}
	return all
}

// update applies a change of the sources, and merges the members anew if it reports that they have changed.
func (d *deployment) update(change func(*sources) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if change(&d.sources) && !d.closed && d.refleet() {
		d.wake.give()
	}
}

// refleet merges the members of all sources, and reports whether the fleet changed. Called with mu held.
func (d *deployment) refleet() bool {
	before, last := len(d.roster.order), d.roster.last
	if !d.roster.set(d.sources.members()) {
		return false
	}
	d.balance.forget(d.roster.has)
	d.conns.setFleet(d.roster.order)
	d.hosted.Load().take(d.roster.order)
	d.repoll()
	d.catalogued()
	if why := d.catalogue.Load().notServing(); why != "" {
		d.log.Warn("warmpath: the deployment does not serve", "reason", why)
	}
	level := slog.LevelInfo
	if len(d.roster.order) == before && d.roster.last == last { // the same replicas: their stats change all the time
		level = slog.LevelDebug
	}
	d.log.Log(context.Background(), level, "warmpath: the fleet changed",
		"replicas", len(d.roster.order), "before", before, "version", d.roster.version)
	return true
}

// tick is the end of an interval: leases expire, and the load is added up for the Router and the watchers.
func (d *deployment) tick(now time.Time) {
	d.picks.leases.expire(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	expired, stirred := d.sources.expire(now)
	d.tally.registrationsExpired.Add(expired)
	if stirred {
		d.refleet()
	}
	h := d.hosted.Load()
	d.balance.tick(d.roster.order, h.router, now)
	h.router.Health.Look()
	d.eject(h.router, now)
	h.flush(d.roster.numberOf)
	d.wake.give()
}

// close ends the deployment, with its goroutines, its watchers and the picks that wait.
func (d *deployment) close() {
	d.tasks.stop()
	d.mu.Lock()
	d.closed = true
	d.balance.ledger.close()
	d.wake.give()
	d.mu.Unlock()
	if d.unobserve != nil {
		d.unobserve()
	}
	d.picks.leases.close()
	d.hosted.Load().close()
	d.conns.close()
}

// tasks are the goroutines of a deployment. One goroutine at a time uses them.
type tasks struct {
	config taskConfig
	cancel context.CancelFunc // nil = none were started
	done   sync.WaitGroup
	check  *checker // nil = health is not checked
}

// taskConfig is what the goroutines depend on.
type taskConfig struct {
	interval time.Duration
	target   string
	check    *HealthCheck
	poll     *LoadPoll
}

// start starts the goroutines of a config, anew if it has changed.
func (d *deployment) start(c *Config, dc Deployment) {
	t := &d.tasks
	next := taskConfig{time.Duration(c.LoadInterval), dc.Target, dc.HealthCheck, dc.LoadPoll}
	if t.cancel != nil && reflect.DeepEqual(t.config, next) {
		return
	}
	t.stop()
	t.config = next
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	t.done.Go(func() { d.beat(ctx, next.interval) })
	if next.target != "" {
		f := follower{target: next.target, every: resolveInterval, log: d.log, on: func(all []described) {
			d.update(func(x *sources) bool { return x.resolve(next.target, all) })
		}}
		t.done.Go(func() { f.run(ctx) })
	}
	d.startCheck(ctx, next.check)
	d.startPoll(ctx, next.poll)
}

func (d *deployment) beat(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			_ = shielded(d.log, "the end of an interval", func() error { d.tick(d.now()); return nil })
		}
	}
}

// stop ends the goroutines.
func (t *tasks) stop() {
	if t.cancel != nil {
		t.cancel()
		t.done.Wait()
	}
}
