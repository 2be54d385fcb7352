package balancer

import (
	"cmp"
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
	router  *router.Router
	metrics func() // stops them; nil = there are none

	events        *kvevents.Manager // nil while no replica is followed
	eventsMetrics func()

	watch  *lookaside.Watch // of the resolver; nil where there is no server
	viewed *lookaside.Watch // whose view the Router has
	detach func()

	// desk is how the servers of deskOf are asked, in the way that was asked for; nil = they are not.
	desk     *call.Central
	deskOf   *lookaside.Watch
	deskWait time.Duration
	warned   bool
}

// attach connects a Router, whose fleet is set, in the place of the one before.
func (a *attached) attach(b *lb, r *router.Router) {
	if a.router != r {
		a.leaveView()
		a.leaveEvents()
		a.router = r
	}
	if a.viewed != a.watch {
		a.leaveView()
		if a.watch != nil {
			a.viewed, a.detach = a.watch, a.watch.Attach(r)
		}
	}
	var sources []policy.Attributes
	for _, m := range b.endpoints.members {
		if s := eventsource.Declared(m.Attributes, b.config.KVEvents, b.config.KVEventsReplay); s.KVEvents != "" {
			sources = append(sources, s)
		}
	}
	if sources == nil || !r.ObservesCache() {
		a.leaveEvents()
		return
	}
	if a.events == nil {
		a.events = kvevents.NewManager(kvevents.Options{
			Sink: r.CacheChanged, Connect: b.direct, Logger: b.logger(),
		})
		a.eventsMetrics = watched(b.recorder().WatchEvents(b.config.Policy.Name, a.events.Status))
	}
	a.events.SetFleet(sources)
}

// observe records the metrics of the Router of a binding.
func (a *attached) observe(b *call.Binding) {
	if a.metrics != nil {
		a.metrics()
	}
	a.metrics = watched(b.Telemetry.Watch(b.Policy, b.Router))
}

// watched is the end of metrics, which may not have begun.
func watched(stop func(), err error) func() {
	if err != nil {
		logger.Warningf("metrics are not observed: %v", err)
		return func() {}
	}
	return stop
}

// leave ends all of it.
func (a *attached) leave() {
	a.leaveView()
	a.leaveEvents()
	if a.metrics != nil {
		a.metrics()
	}
}

func (a *attached) leaveView() {
	if a.viewed != nil {
		a.detach()
		a.viewed = nil
	}
}

// leaveEvents ends the KV events; what was received is cleared. It waits for goroutines that do not take lb.mu.
func (a *attached) leaveEvents() {
	if a.events != nil {
		a.eventsMetrics()
		a.events.Close()
		a.events = nil
	}
}

// central is how calls ask the server, nil where they do not. Where there is no server to ask it logs that, once.
func (a *attached) central(want *policy.Adoption) *call.Central {
	wait := time.Duration(cmp.Or(want.CentralDeadline, policy.Duration(policy.DefaultCentralDeadline)))
	switch closed := want.Mode == policy.CentralOnly; {
	case !want.Asks():
		a.desk = nil
	case a.watch == nil:
		a.desk = nil
		if !a.warned {
			a.warned = true
			slog.Warn("warmpath: mode is central, and there is no look-aside server to ask: the local policy decides; " +
				"dial warmpath://server:port/deployment")
		}
	case a.desk == nil || a.deskOf != a.watch || a.deskWait != wait || a.desk.Closed != closed:
		a.desk = &call.Central{Desk: a.watch.Desk(wait), Closed: closed}
		a.deskOf, a.deskWait = a.watch, wait
	}
	return a.desk
}
