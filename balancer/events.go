package balancer

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/router"
)

// events are the replicas' KV events, followed for one Router. Used with lb.mu held.
type events struct {
	manager *kvevents.Manager // nil while no replica is followed
	router  *router.Router
	unwatch func()
}

// follow passes the replicas' cache events to the Router, if its policy can use that and some of them have a source.
func (e *events) follow(b *lb, r *router.Router) {
	var sources []policy.Attributes
	for _, m := range b.endpoints.members {
		if a := eventsource.Declared(m.Attributes, b.config.KVEvents, b.config.KVEventsReplay); a.KVEvents != "" {
			sources = append(sources, a)
		}
	}
	if e.router != r || sources == nil {
		e.end()
	}
	if sources == nil || !r.ObservesCache() {
		return
	}
	if e.manager == nil {
		m := kvevents.NewManager(kvevents.Options{
			Sink: r.CacheChanged, Connect: b.endpoints.connections.get, Logger: b.notices.logger(),
		})
		stop, err := b.recorder().WatchEvents(b.config.Policy.Name, m.Status)
		if err != nil {
			logger.Warningf("metrics of KV events are not observed: %v", err)
			stop = func() {}
		}
		*e = events{manager: m, router: r, unwatch: stop}
	}
	e.manager.SetFleet(sources)
}

// end ends what is followed; what was received is cleared.
func (e *events) end() {
	if e.manager != nil {
		e.unwatch()
		e.manager.Close()
		*e = events{}
	}
}
