package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/codes"

	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/sharedstore"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokenize"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A deployment is one fleet with one policy.
type deployment struct {
	name  string
	life  string // of its numbers and versions; another one where the deployment is removed and added again
	log   *slog.Logger
	now   func() time.Time
	tally tally
	picks picks
	moved func() // called when the deployment begins or ceases to serve
	conns replicaConns
	tasks tasks

	wake signal   // given when there may be news for watchers
	ends []func() // of the metrics, and of the part in a cluster

	// These are replaced under mu and read without it.
	hosted    atomic.Pointer[hosted]
	limits    atomic.Pointer[Config] // its deployments are not read
	catalogue atomic.Pointer[catalogue]
	// eventHosts are the hosts beside its own that a replica may name as the source of its KV events.
	eventHosts atomic.Pointer[[]string]

	// merging is held while urgent changes are merged, and in the pause before. It is taken before mu.
	merging sync.Mutex
	rested  time.Time // when the next merge may begin; guarded by merging

	// mu guards what is below, with the records of members. The locks of leases, conns, wake, moved, pollers and the
	// Router are taken under it.
	mu        sync.Mutex
	sources   sources
	pushed    *warmpathv1.ConfigUpdate
	roster    roster
	balance   balance
	peers     *peers
	homes     homes
	ejections uint64 // the version of the Router's ejections that the members have
	// ejectedVersion counts the changes of the members that are ejected or half-open, and of the clients that may probe.
	ejectedVersion uint64
	urgent         bool // the sources have changed, and are to be merged before the end of the interval
	watchers       int
	closed         bool
	pollers        map[string]poller
}

// newDeployment returns a deployment without a config: it serves once a change is applied.
func newDeployment(
	name string, log *slog.Logger, now func() time.Time, moved func(), recorder *telemetry.Recorder,
	m membership,
) *deployment {
	d := &deployment{
		name: name, life: rand.Text(), log: log.With("deployment", name), now: now, moved: moved,
		tasks: make(tasks), pollers: make(map[string]poller),
	}
	d.tally.decisions, d.tally.failures = make(map[decided]uint64), make(map[codes.Code]uint64)
	d.roster = roster{log: d.log, tally: &d.tally}
	d.sources = sources{deployment: name, log: d.log, now: now, roster: &d.roster}
	d.peers = m.newPeers(name, &d.tally, d.log, now())
	d.balance = balance{sources: &d.sources, peers: d.peers, ledger: ledger{roster: &d.roster}}
	d.picks = picks{
		name: name, log: d.log, now: now, hosted: &d.hosted, tally: &d.tally,
		leases:   newLeases(name, func() int { return d.limits.Load().MaxReservations }),
		store:    m.storeOf(name, sharedstore.NewMemory(now)),
		recorder: recorder.With(telemetry.KeyDeployment.String(name)),
	}
	return d
}

// A change is a config of a deployment that can be put into force without an error.
type change struct {
	deployment *deployment
	config     Deployment
	router     *router.Router // nil = the Router stays
	secures    bool           // certs replaces the certificates in force
	certs      *certificates  // nil = plaintext
}

// prepare builds what a config needs, and puts nothing into force. One goroutine at a time calls it and apply.
func (d *deployment) prepare(c Deployment) (x *change, err error) {
	x = &change{deployment: d, config: c, secures: !reflect.DeepEqual(c.ReplicaTLS, d.sources.config.ReplicaTLS)}
	if x.secures {
		x.certs, err = openCertificates(c.ReplicaTLS, "replica_tls", d.log)
	}
	if err == nil && !d.hosted.Load().suits(c.Config) {
		x.router, err = tokenize.NewRouter(&c.Config, d.log, d.now)
	}
	if err != nil {
		x.discard()
		return nil, err
	}
	return x, nil
}

// discard closes what a change that is not applied has opened.
func (x *change) discard() {
	if x.router != nil {
		_ = x.router.Close()
	}
}

// apply puts the change into force. The Router, with its load and caches, stays unless its own config has changed.
func (x *change) apply(limits *Config) {
	d := x.deployment
	if x.secures {
		d.conns.secure(x.certs)
	}
	// What follows is not under the lock: it may wait for goroutines that take it, as the callbacks of metrics do.
	first := d.hosted.Load() == nil
	before := d.replace(x, limits)
	if before != nil {
		before.close()
	}
	var err error
	if first {
		for _, begin := range []func() (func(), error){d.watchMeters, d.join} {
			end, failed := begin()
			if err = errors.Join(err, failed); failed == nil {
				d.ends = append(d.ends, end)
			}
		}
		announce(d.log, &x.config, d.catalogue.Load().notServing())
	}
	if x.router != nil {
		err = errors.Join(err, d.hosted.Load().observe(d.picks.recorder))
	}
	if err != nil {
		d.log.Error("warmpath: some metrics are not recorded, or the cluster is not joined", "error", err)
	}
	d.start(time.Duration(limits.LoadInterval), x.config)
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
		if d.peers.bus != nil {
			next.spread, next.follows = &d.peers.routes, func(id string) bool { return d.peers.follows(id, d.now()) }
		}
		d.prepareRouter(old, next)
		d.hosted.Store(next)
		before = old
	}
	if service := serviceConfig(x.config.Config); service != d.pushed.GetServiceConfig() {
		d.pushed = &warmpathv1.ConfigUpdate{Version: d.pushed.GetVersion() + 1, ServiceConfig: service}
		d.peers.config = fmt.Sprintf("%x", xxh3.HashString128(service).Bytes())
	}
	d.sources.configure(x.config)
	d.limits.Store(limits)
	d.eventHosts.Store(&x.config.RegisterEventHosts)
	d.refleet()
	d.catalogued()
	d.wake.give()
	return before
}

// prepareRouter gives a Router that is not in force yet the fleet, and the load and the ejections of the one before.
// Called with mu held.
func (d *deployment) prepareRouter(old, next *hosted) {
	if old != nil {
		next.router.Inherit(old.router)
	}
	if next.take(d.roster.order); old != nil {
		next.inherit(old)
		d.balance.tick(next.router, d.picks.leases.loads(), d.now())
	}
}

// update applies a change of the sources. If it reports that the members have changed, they are merged anew when update
// returns.
func (d *deployment) update(change func(*sources) bool) {
	if d.changed(change) {
		d.merge()
	}
}

// changed applies a change of the sources, and reports whether the members are to be merged anew.
func (d *deployment) changed(change func(*sources) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !change(&d.sources) {
		return false
	}
	d.urgent = true
	d.sources.whole = d.sources.whole || !d.sources.stirred()
	return true
}

// Pauses between two merges: a part of what the last one took, so that changes that never end take a part of one
// processor only.
const (
	pauseAfterMerge = 3
	maxMergePause   = 100 * time.Millisecond
)

// merge enters urgent changes. Changes that come while it waits or runs are entered together by the next one: however
// many replicas register at once, few merges enter them.
func (d *deployment) merge() {
	d.merging.Lock()
	defer d.merging.Unlock()
	d.mu.Lock()
	urgent := d.urgent
	d.mu.Unlock()
	if !urgent {
		return // another merge has entered the change
	}
	time.Sleep(time.Until(d.rested))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	began := time.Now()
	if d.refleet() {
		d.wake.give()
	}
	d.rested = time.Now().Add(min(pauseAfterMerge*time.Since(began), maxMergePause))
}

// refleet merges the members of all sources, and reports whether the fleet changed. Called with mu held.
func (d *deployment) refleet() bool {
	d.urgent = false
	before := len(d.roster.order)
	c := d.sources.merge()
	if c.none() {
		return false
	}
	if len(c.left) > 0 {
		d.ejectedVersion++
	}
	d.peers.joined(&d.roster, c.joined)
	d.conns.change(c)
	d.hosted.Load().change(d.roster.order, c)
	d.repoll()
	if c.any(func(was, is *member) bool { return was.Address != is.Address || !slices.Equal(was.Models, is.Models) }) {
		d.catalogued()
		if why := d.catalogue.Load().notServing(); why != "" {
			d.log.Warn("warmpath: the deployment does not serve", "reason", why)
		}
	}
	level := slog.LevelInfo
	if len(c.joined)+len(c.left) == 0 { // the same replicas: their stats change all the time
		level = slog.LevelDebug
	}
	d.log.Log(context.Background(), level, "warmpath: the fleet changed",
		"replicas", len(d.roster.order), "before", before, "version", d.roster.version)
	return true
}

// tick is the end of an interval: leases expire, and the load is added up for the Router and the watchers.
func (d *deployment) tick(now time.Time) {
	leased := d.picks.leases.expire(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally.registrationsExpired.Add(d.sources.expire(now))
	if d.sources.stirred() {
		d.refleet()
	}
	h := d.hosted.Load()
	d.balance.tick(h.router, leased, now)
	h.router.Health.Look()
	d.eject(h.router, now)
	d.homes.balance(&d.roster, d.peers, now)
	h.flush(d.roster.numberOf)
	d.publish(leased, now)
	d.wake.give()
}

// close ends the deployment, with its goroutines, its watchers and the picks that wait.
func (d *deployment) close() {
	d.tasks.stop()
	for _, end := range d.ends {
		end()
	}
	d.mu.Lock()
	d.closed = true
	d.peers.leave(d.now())
	d.balance.ledger.close()
	d.wake.give()
	d.mu.Unlock()
	d.picks.leases.close()
	d.hosted.Load().close()
	d.conns.close()
}

// tasks are the goroutines of a deployment, by the part of the config that each depends on. One goroutine at a time
// uses them.
type tasks map[string]task

type task struct {
	config any
	stop   func() // waits for its end
}

// set runs a task until its config changes.
func (t tasks) set(name string, config any, run func(context.Context)) {
	if before, runs := t[name]; runs {
		if reflect.DeepEqual(before.config, config) {
			return
		}
		before.stop()
	}
	t[name] = task{config, pause.Run(run)}
}

// stop ends all of them.
func (t tasks) stop() {
	for _, x := range t {
		x.stop()
	}
}

// start starts the tasks of a config.
func (d *deployment) start(interval time.Duration, c Deployment) {
	d.tasks.set("load_interval", interval, func(ctx context.Context) {
		_ = pause.For(ctx, interval) // the loop sees its end
		for range pause.Every(ctx, interval) {
			_ = shielded(d.log, "the end of an interval", func() error { d.tick(d.now()); return nil })
		}
	})
	d.tasks.set("target", c.Target, func(ctx context.Context) { d.follow(ctx, c.Target) })
	d.tasks.set("health_check", c.HealthCheck, func(ctx context.Context) {
		d.checkHealth(ctx, time.Duration(c.HealthCheck))
	})
	d.tasks.set("load_poll", []any{c.LoadPoll, c.LoadPages}, func(ctx context.Context) { d.pollLoad(ctx, &c) })
}
