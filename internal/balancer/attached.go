package balancer

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/router"
)

// attached is what the Router in use, and no other, is connected to: the look-aside server's view of the replicas, the
// replicas' KV events, and metrics. Used with lb.mu held.
type attached struct {
	router *router.Router
	watch  *lookaside.Watch // of the resolver; nil where there is no server
	viewed *lookaside.Watch // whose view the Router has
	events *kvevents.Manager
	ended  []*kvevents.Manager // that follow nothing any more, to be closed without lb.mu: a Sink may take its time

	// What ends the view, the KV events and the metrics; nil = there are none. The end of the events clears what was
	// received; it does not wait for that.
	leaveView, leaveEvents, leaveMetrics func()

	warned bool
}

// attach connects a Router, whose fleet is set, in the place of the one before.
func (a *attached) attach(b *lb, r *router.Router) {
	if a.router != r {
		leave(&a.leaveView)
		leave(&a.leaveEvents)
		a.router, a.viewed = r, nil
	}
	if a.viewed != a.watch {
		leave(&a.leaveView)
		if a.viewed = a.watch; a.watch != nil {
			a.leaveView = a.watch.Attach(r)
		}
	}
	var sources []policy.Attributes
	for _, m := range b.endpoints.members {
		if s := eventsource.Declared(m.Attributes, b.config.KVEvents, b.config.KVEventsReplay); s.KVEvents != "" {
			sources = append(sources, s)
		}
	}
	if !r.ObservesCache() {
		sources = nil
	}
	if a.leaveEvents == nil {
		if sources == nil {
			return
		}
		h := b.handle()
		events := kvevents.NewManager(kvevents.Options{Sink: r.CacheChanged, Connect: b.direct, Logger: h.Logger})
		metrics := watched(h.Telemetry.WatchEvents(b.config.Policy.Name, events.Status))
		a.events, a.leaveEvents = events, func() {
			metrics()
			events.SetFleet(nil)
			a.ended = append(a.ended, events)
		}
	}
	a.events.SetFleet(sources)
}

// observe records the metrics of the Router of a binding.
func (a *attached) observe(b *call.Binding) {
	leave(&a.leaveMetrics)
	a.leaveMetrics = watched(b.Telemetry.Watch(b.Policy, b.Router))
}

// watched is the end of metrics, which may not have begun.
func watched(stop func(), err error) func() {
	if err != nil {
		logger.Warningf("metrics are not observed: %v", err)
		return func() {}
	}
	return stop
}

// leave ends something that may have begun.
func leave(end *func()) {
	if *end != nil {
		(*end)()
		*end = nil
	}
}

// ErrNeedsServer refuses a config that needs a look-aside server for a target that names none.
var ErrNeedsServer = errors.New("mode: central_only needs a look-aside server, and the target names none; " +
	"dial warmpath://server:port/deployment, or set mode to central or broadcast")

// NeedsServer reports whether there must be a look-aside server: without its decision a call fails.
func NeedsServer(c *policy.Adoption) bool { return c.Mode == policy.CentralOnly && !killed(c) }

func killed(c *policy.Adoption) bool { return c.Percentage != nil && *c.Percentage == policy.Off }

// central is how calls ask the server, zero where they do not. Where there is no server to ask it logs that, once.
func (a *attached) central(want *policy.Adoption) call.Central {
	switch {
	case want.Mode != policy.InCentral && want.Mode != policy.CentralOnly || killed(want):
	case a.watch != nil:
		return call.Central{
			Server: a.watch.Central(), Closed: want.Mode == policy.CentralOnly,
			Deadline: time.Duration(cmp.Or(want.CentralDeadline, policy.Duration(policy.DefaultCentralDeadline))),
		}
	case !a.warned:
		a.warned = true
		slog.Warn("warmpath: mode is central, and there is no look-aside server to ask: the local policy decides; " +
			"dial warmpath://server:port/deployment")
	}
	return call.Central{}
}
