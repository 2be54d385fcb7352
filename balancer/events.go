package balancer

import (
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/kvevents"
)

// events are the replicas' KV events, followed for one Router. Used with lb.mu held.
type events struct {
	manager *kvevents.Manager // nil while no replica is followed
	router  *routing.Router
	unwatch func()
}

// followEvents passes the replicas' cache events to the Router, if its policy can use that and some of them
// say where. Called with mu held.
func (b *lb) followEvents(r *routing.Router) {
	sources := b.sources()
	if b.events.router != r || sources == nil {
		b.endEvents()
	}
	if sources == nil || !r.ObservesCache() {
		return
	}
	if b.events.manager == nil {
		m := kvevents.NewManager(kvevents.Options{Sink: r.CacheChanged, Connect: b.connections.get, Logger: b.logger()})
		stop, err := b.recorder().WatchEvents(b.config.Policy.Name, m.Status)
		if err != nil {
			logger.Warningf("metrics of KV events are not observed: %v", err)
			stop = func() {}
		}
		b.events = events{manager: m, router: r, unwatch: stop}
	}
	b.events.manager.SetFleet(sources)
}

// endEvents ends what is followed; what was received is cleared.
func (b *lb) endEvents() {
	if b.events.manager != nil {
		b.events.unwatch()
		b.events.manager.Close()
		b.events = events{}
	}
}

// sources returns the members with where their events come from, nil if that is known of none.
func (b *lb) sources() []routing.Attributes {
	var all []routing.Attributes
	for _, m := range b.members {
		a := fleet.Declared(m.Attributes, b.config.KVEvents, b.config.KVEventsReplay)
		if a.KVEvents != "" {
			all = append(all, a)
		}
	}
	return all
}

// noteConnection keeps the replica's connection for calls to that replica while it is ready. Called with mu held.
func (b *lb) noteConnection(e *endpoint, s balancer.State) {
	var sc balancer.SubConn
	if s.ConnectivityState == connectivity.Ready {
		if res, err := s.Picker.Pick(balancer.PickInfo{}); err == nil {
			sc = res.SubConn
			if res.Done != nil {
				res.Done(balancer.DoneInfo{})
			}
		}
	}
	b.connections.set(e.id, sc)
}
