package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/sharedstore"
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
	dialer dialer
	conns  conns

	sources sources
	polls   polls

	wake      signal // given when there may be news for watchers
	unobserve func() // set before the deployment is used, or never

	// These are replaced under mu and read without it.
	hosted    atomic.Pointer[hosted]
	limits    atomic.Pointer[Config] // its deployments are not read
	catalogue atomic.Pointer[catalogue]

	// mu guards what is below. The locks of leases, sources, polls, conns, wake, moved and the Router are taken under it.
	mu       sync.Mutex
	config   Deployment
	pushed   *warmpathv1.ConfigUpdate
	roster   roster
	balance  balance
	outliers outliers
	watchers int
	closed   bool
}

func newDeployment(
	name string, c Deployment, limits *Config, log *slog.Logger, now func() time.Time, moved func(),
) (*deployment, error) {
	d := &deployment{
		name: name, log: log.With("deployment", name), now: now, moved: moved,
	}
	d.dialer.log = d.log
	d.sources = sources{deployment: name, log: d.log, now: now}
	d.balance = balance{limits: &d.limits, picks: &d.picks, sources: &d.sources, polls: &d.polls}
	d.conns.dial = d.dialer.dial
	d.polls = polls{log: d.log, now: now, conns: &d.conns, stir: d.sources.stir}
	d.picks = picks{
		name: name, log: d.log, now: now, hosted: &d.hosted, limits: &d.limits, tally: &d.tally,
		leases: leases{prefix: name + "#"}, store: sharedstore.NewMemory(now),
	}
	if err := d.configure(c, limits); err != nil {
		d.dialer.close()
		return nil, err
	}
	return d, nil
}

// configure puts another config into force. The Router, with its load and caches, stays unless its own config has
// changed.
func (d *deployment) configure(c Deployment, limits *Config) error {
	if err := d.dialer.use(c.ReplicaTLS); err != nil {
		return err
	}
	before, err := d.reconfigure(c, limits)
	if before != nil {
		before.close() // it may wait for goroutines that take the lock
	}
	if err == nil {
		d.polls.configure(c.LoadPoll)
		d.repoll()
	}
	if before != nil && d.picks.recorder != nil {
		// Not under the lock either: the callbacks of metrics take it.
		err = errors.Join(err, d.hosted.Load().observe(d.picks.recorder))
	}
	return err
}

// rehearse builds the Router and the tokenizer of a config, and puts nothing into force.
func (d *deployment) rehearse(c Deployment) error {
	if d.hosted.Load().suits(c.Config) {
		return nil
	}
	r, err := newRouter(c.Config, d.log, d.now)
	if err != nil {
		return err
	}
	return r.Close()
}

// reconfigure returns what is to be closed, or nil.
func (d *deployment) reconfigure(c Deployment, limits *Config) (before *hosted, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text, err := serviceConfig(c.Config)
	if err != nil {
		return nil, err
	}
	old := d.hosted.Load()
	if !old.suits(c.Config) {
		next, err := host(c.Config, old, &d.conns, d.log, d.now)
		if err != nil {
			return nil, err
		}
		d.hosted.Store(next)
		before = old
		if old != nil {
			next.take(d.roster.members(), d.roster.order)
		}
	} else if err := old.adopt(c.Config); err != nil {
		return nil, err
	}
	if text != d.pushed.GetServiceConfig() {
		d.pushed = &warmpathv1.ConfigUpdate{Version: d.pushed.GetVersion() + 1, ServiceConfig: text}
	}
	d.config = c
	d.sources.configure(c)
	d.limits.Store(limits)
	d.picks.leases.limit(limits.MaxReservations)
	if !d.refleet() {
		d.catalogued()
	}
	d.wake.give()
	return before, nil
}

// resolve sets the addresses of a target.
func (d *deployment) resolve(target string, all []described) {
	if d.sources.resolve(target, all) {
		d.refresh()
	}
}

// repoll gives the members to a new poller.
func (d *deployment) repoll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.polls.follow(d.roster.order)
}

// members are the fleet as it is now.
func (d *deployment) members() []*member {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.roster.order
}

// refresh puts a change of the sources into force.
func (d *deployment) refresh() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed && d.refleet() {
		d.wake.give()
	}
}

// refleet merges the members of all sources, and reports whether the fleet changed. Called with mu held.
func (d *deployment) refleet() bool {
	all := d.sources.members(d.polls.kvTokens)
	before, last := len(d.roster.order), d.roster.last
	if !d.roster.set(all) {
		return false
	}
	d.balance.forget(d.roster.has)
	d.conns.setFleet(d.roster.order)
	d.hosted.Load().take(d.roster.members(), d.roster.order)
	d.polls.follow(d.roster.order)
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
	h.router.Look()
	d.eject(h.router, now)
	h.flush(d.roster.numberOf)
	d.wake.give()
}

// close ends the deployment, with its watchers and the picks that wait.
func (d *deployment) close() {
	d.mu.Lock()
	d.closed = true
	d.balance.ledger.close()
	d.wake.give()
	d.mu.Unlock()
	d.polls.configure(nil)
	if d.unobserve != nil {
		d.unobserve()
	}
	d.picks.leases.close()
	d.hosted.Load().close()
	d.conns.close()
	d.dialer.close()
}
