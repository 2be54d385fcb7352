package balancer

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/connectivity"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/health"
	"github.com/warmpath/warmpath/internal/router"
)

// firstAnswer is how long a new connection waits for the first answer about the health of its replica. Without one it is
// used all the same.
const firstAnswer = time.Second

// asking is the state of an endpoint whose connection is ready, until the replica has answered whether it serves.
var asking = &balancer.State{
	ConnectivityState: connectivity.Connecting, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable),
}

// A healthReport is what a replica reports of its health on the connection that there is. lb.mu guards it.
type healthReport struct {
	err    error  // nil = it serves
	drains bool   // it does not, since it drains: it still serves what it is sent
	end    func() // of the watch; nil = there is none
}

// unwell reports whether the replica does not serve.
func (w *healthReport) unwell() bool { return w.err != nil && !w.drains }

// unwatch ends the watch and forgets what was reported. Called with lb.mu held.
func (e *endpoint) unwatch() {
	if e.health.end != nil {
		e.health.end()
	}
	e.setHealth(healthReport{})
}

// setHealth replaces the report, and counts endpoints whose replica does not serve. Called with lb.mu held.
func (e *endpoint) setHealth(h healthReport) {
	l := &e.lb.endpoints
	if e.health.unwell() {
		l.unwell--
	}
	if e.health = h; h.unwell() {
		l.unwell++
	}
}

// watch begins to watch the health of the replica if its connection is ready. It returns the state to put into force
// until the first answer. Called with lb.mu held.
func (e *endpoint) watch(s *balancer.State) *balancer.State {
	b, service := e.lb, e.lb.config.HealthService
	if s.ConnectivityState != connectivity.Ready || service == policy.NoHealth {
		return s
	}
	conn := connOf(s)
	if conn == nil {
		return s
	}
	ctx, cancel := context.WithCancel(b.ctx)
	use := func(take func()) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if ctx.Err() != nil || b.closed {
			return
		}
		take()
		if e.state.Load() == asking {
			b.endpoints.put(e, s)
		}
		b.changed(e)
	}
	late := time.AfterFunc(firstAnswer, func() { use(func() {}) })
	b.watches.Go(func() {
		health.Watch(ctx, conn, service, func(err error, drains bool) {
			late.Stop()
			use(func() { e.reported(err, drains) })
		})
	})
	e.health.end = func() {
		cancel()
		late.Stop()
	}
	return asking
}

// rewatch watches another service on every connection. Called with lb.mu held.
func (l *endpoints) rewatch() {
	for _, e := range l.all.Values() {
		if e.reports == nil {
			continue
		}
		e.unwatch()
		if s := e.watch(e.reports); e.connectivity() != connectivity.Ready { // else it stays in use meanwhile
			l.put(e, s)
		}
	}
}

// reported enters what a replica reports. Called with lb.mu held.
func (e *endpoint) reported(err error, drains bool) {
	was := e.health.unwell()
	e.setHealth(healthReport{err: err, drains: drains, end: e.health.end})
	switch log := e.lb.handle().Logger; {
	case e.health.unwell() && !was:
		log.Warn("warmpath: a replica reports that it does not serve, and gets no calls while others serve",
			"replica", e.id, "status", err)
	case was && !e.health.unwell():
		log.Info("warmpath: a replica reports that it serves again", "replica", e.id)
	}
}

// warnUnwell logs that no replica serves, once until one does. Called with lb.mu held.
func (l *endpoints) warnUnwell(b *lb) {
	none := l.unwell > 0 && l.unwell == l.states[connectivity.Ready] && l.states[connectivity.Connecting] == 0
	if none && !l.warned {
		b.handle().Logger.Warn("warmpath: every replica that is connected reports that it does not serve: all are used",
			"target", b.target, "replicas", l.unwell)
	}
	l.warned = none
}

// force puts the connection of an endpoint, and the health of its replica, into force in a Router. Called with lb.mu
// held.
func (l *endpoints) force(r *router.Router, e *endpoint) {
	r.Health.SetServing(e.id, !e.health.unwell()) // first: no call is to go there in between
	r.Fleet.SetComing(e.id, l.coming(e))
	r.Fleet.SetConnected(e.id, l.pickable(e.host))
	l.drain(r, e)
}

// drain puts into force in a Router that a replica drains.
func (l *endpoints) drain(r *router.Router, e *endpoint) {
	if e.health.err != nil && e.health.drains {
		r.Fleet.Drain(e.id)
	}
}

// connOf returns a connection that is ready for calls to its replica, or nil if it is gone.
func connOf(s *balancer.State) grpc.ClientConnInterface {
	res, err := s.Picker.Pick(balancer.PickInfo{})
	if err != nil {
		return nil
	}
	if res.Done != nil {
		res.Done(balancer.DoneInfo{})
	}
	// Not closed: gRPC takes it back whenever the connection's state changes.
	p, _ := res.SubConn.GetOrBuildProducer(directBuilder{})
	conn, _ := p.(grpc.ClientConnInterface)
	return conn
}
