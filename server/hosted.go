package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	_ "github.com/warmpath/warmpath/balancer/kvevents" // KV events over ZeroMQ
	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
)

// hosted is a Router, with the subscriptions to its replicas' KV events where its policy uses them.
type hosted struct {
	router *router.Router
	config policy.Config // of the Router
	log    *slog.Logger
	number uint64 // of the deployment's Routers, from 1
	// reading is how gateways' requests are read.
	reading endpoint.Reading

	deciding atomic.Pointer[string] // name of the policy in force

	warnNoKey sync.Once

	// These are nil where the policy does not use caches.
	index  *index
	events *kvevents.Manager

	// In a cluster; nil without one.
	spread *router.RouteLog // of the routes that are published to the other servers
	// follows reports whether this server follows a replica's events. The deployment's mutex is held.
	follows  func(id string) bool
	followed atomic.Pointer[map[string]bool] // the replicas whose events count

	own        router.RouteLog // of the picks made here since the last interval
	predicting sync.Mutex      // held while changes predicted from routes are applied, so that they are in order

	unwatch []func() // end the metrics
}

// host gives a Router the caches that its policy uses. old is the one before, or nil.
func host(r *router.Router, c policy.Config, old *hosted, conns *replicaConns, log *slog.Logger) *hosted {
	h := &hosted{router: r, config: c, log: log, number: 1}
	if old != nil {
		h.number = old.number + 1
	}
	h.reading, _ = endpoint.NewReading(c) // the config was checked
	h.name(c)
	if !r.ObservesCache() {
		return h
	}
	h.index = newIndex(h.number << 32) // so that clients do not take its versions for those of another
	r.Routes.Share(h.shared)
	h.events = kvevents.NewManager(kvevents.Options{
		Sink: h.changed, Connect: conns.connect, Coarse: true, Logger: log,
	})
	return h
}

// suits reports whether this Router can serve a config.
func (h *hosted) suits(c policy.Config) bool {
	return h != nil && reflect.DeepEqual(router.Lasting(h.config), router.Lasting(c))
}

// adopt puts the fields into force that can change without another Router.
func (h *hosted) adopt(c policy.Config) {
	h.name(c)
	_ = h.router.Rollout.Set(c.Percentage) // it cannot fail: the Router has a policy for the rest
}

func (h *hosted) name(c policy.Config) {
	name := router.Deciding(&c)
	h.deciding.Store(&name)
}

// needsPrompt reports whether requests without a prompt are refused.
func (h *hosted) needsPrompt() bool {
	return h.config.RequirePrompt && h.router.Uses()&policy.UsesPrompt != 0
}

// policy is the name of the policy that decides.
func (h *hosted) policy() string { return *h.deciding.Load() }

// serviceConfig is the config for a channel, without the sources of KV events and load: only the server asks replicas.
func serviceConfig(c policy.Config) string {
	c.KVEvents, c.KVEventsReplay, c.LoadPoll = "", "", ""
	type choice map[string]any
	raw, _ := json.Marshal(map[string]any{"loadBalancingConfig": []choice{{"warmpath": c}, {"round_robin": choice{}}}})
	return string(raw) // what was read can be written
}

// changed applies a replica's events: blocks are for the Router here, superblocks for those of the watchers. In a
// cluster all Routers use superblocks, since those of the other servers get no more. What comes from a replica that
// another server follows by now, its subscription's end included, does not count.
func (h *hosted) changed(changes []policy.CacheChange) {
	if followed := h.followed.Load(); h.spread != nil && (followed == nil || !(*followed)[changes[0].Replica]) {
		return
	}
	some := make([]policy.CacheChange, 0, len(changes))
	for _, c := range changes {
		if c.Coarse == (h.spread != nil) {
			some = append(some, c)
		}
	}
	h.router.CacheChanged(some)
	h.index.take(changes) // last: ChooseReplica uses what watchers are sent
}

// routed applies routes to the caches of replicas that publish no events.
func (h *hosted) routed(all []router.Route) {
	if h.index == nil || len(all) == 0 {
		return
	}
	h.predicting.Lock()
	defer h.predicting.Unlock()
	h.router.CacheChanged(h.index.predict(all))
}

// shared records the route of a pick made here, for watchers.
func (h *hosted) shared(to *policy.Replica, rank int, superblocks []uint64) {
	if to.KVEvents == "" && h.config.KVEvents == "" {
		h.own.Add(to, rank, superblocks)
	}
}

// received applies routes that this server's clients report or that it picked, and publishes them in a cluster.
func (h *hosted) received(all []router.Route) {
	h.routed(all)
	if h.spread == nil || len(all) == 0 {
		return
	}
	view := h.router.View()
	for _, r := range all {
		if rep := view.ByID(r.Replica); rep != nil && len(r.Superblocks) > 0 {
			h.spread.Add(rep, r.Rank, r.Superblocks)
		}
	}
}

// flush makes a version of the index, for watchers.
func (h *hosted) flush(number func(id string) uint32) {
	h.received(h.own.Take())
	if h.index != nil {
		h.index.flush(number)
	}
}

// take gives the Router its fleet. All replicas count as connected: the server makes no calls of its own to them.
func (h *hosted) take(order []*member) {
	members := make([]router.Member, len(order))
	for i, m := range order {
		members[i] = router.Member{Attributes: m.Attributes, Host: m}
	}
	h.router.Fleet.Set(members)
	h.router.Fleet.Connect()
	for _, m := range order {
		h.router.Fleet.SetCapacity(m.ID, m.KVTokens)
	}
	h.subscribe(order)
}

// change follows a change of the fleet, which is in order by then.
func (h *hosted) change(order []*member, c fleetChange) {
	if len(c.left) > 0 {
		h.take(order)
		return
	}
	some := slices.Clone(c.joined)
	for _, x := range c.changed {
		some = append(some, x.is)
	}
	members := make([]router.Member, len(some))
	for i, m := range some {
		members[i] = router.Member{Attributes: m.Attributes, Host: m}
	}
	h.router.Fleet.Change(members)
	for _, m := range some {
		h.router.Fleet.SetCapacity(m.ID, m.KVTokens)
	}
	if c.any(func(was, is *member) bool { return !was.caches(is) }) {
		h.subscribe(order)
	}
}

// caches reports whether all is the same for subscribe.
func (m *member) caches(o *member) bool {
	return m.Address == o.Address && m.KVEvents == o.KVEvents && m.KVEventsReplay == o.KVEventsReplay &&
		m.Ranks == o.Ranks && m.Instance == o.Instance && m.KVTokens == o.KVTokens && slices.Equal(m.Models, o.Models)
}

// inherit takes over the ejections of the Router before: the next request on each of these replicas is its probe.
func (h *hosted) inherit(old *hosted) {
	out, before, own := make(map[*outlier.Replica]outlier.State), old.router.View(), h.router.Outliers()
	for _, rep := range h.router.View().Replicas() {
		if was := before.ByID(rep.ID); was != nil {
			out[h.router.Outlier(rep)], _ = old.router.Outliers().State(old.router.Outlier(was))
		}
	}
	maps.DeleteFunc(out, func(_ *outlier.Replica, s outlier.State) bool { return s < outlier.HalfOpen })
	own.Follow(out)
	own.Inherit()
	h.router.Health.Sync()
}

// subscribe follows the KV events of the replicas that have any, in a cluster of some of them, and predicts the caches
// of the others.
func (h *hosted) subscribe(order []*member) {
	if h.index == nil {
		return
	}
	sources, silent := make([]policy.Attributes, len(order)), make(map[string]cacheOf)
	followed := make(map[string]bool)
	for i, m := range order {
		sources[i] = eventsource.Declared(m.Attributes, h.config.KVEvents, h.config.KVEventsReplay)
		if sources[i].KVEvents == "" && h.router.Routes.Shares() {
			silent[m.ID] = cacheOf{tokens: m.KVTokens, instance: m.Instance}
		}
		if followed[m.ID] = h.follows == nil || h.follows(m.ID); !followed[m.ID] {
			sources[i].KVEvents = ""
		}
	}
	h.followed.Store(&followed)
	h.events.SetFleet(sources)
	h.predicting.Lock()
	defer h.predicting.Unlock()
	h.router.CacheChanged(h.index.setSilent(silent))
}

// close ends the subscriptions, then the Router, with the picks that wait in its queue.
func (h *hosted) close() {
	for _, stop := range h.unwatch {
		stop()
	}
	if h.events != nil {
		h.events.Close()
	}
	if err := h.router.Close(); err != nil {
		h.log.Warn("warmpath: a policy did not close", "policy", h.config.Policy.Name, "error", err)
	}
}

// announce logs one line on the deployment: its policy, the settings that differ from their defaults, session keys and
// modes.
func announce(log *slog.Logger, dc *Deployment, notServing string) {
	attrs := router.Describe(dc.Config)
	note := func(source string, has bool) {
		if has {
			attrs = append(attrs, slog.Bool(source, true))
		}
	}
	note("target", dc.Target != "")
	note("register", dc.Register)
	note("health_check", dc.HealthCheck != 0)
	note("load_poll", dc.LoadPoll != "")
	note("replica_tls", dc.ReplicaTLS != nil)
	attrs = append(attrs, slog.Int("replicas", len(dc.Replicas)))
	log.LogAttrs(context.Background(), slog.LevelInfo, "warmpath: the deployment starts", attrs...)
	if notServing != "" {
		log.Warn("warmpath: the deployment does not serve", "reason", notServing)
	}
}

// warnNoKey logs how requests get the key that the policy needs. Called once.
func (k *picks) warnNoKey(policy string) {
	k.log.Warn("warmpath: requests carry no key that the policy routes by, and are routed by load; logged once",
		"policy", policy, "grpc", "set key.session or key.prompt",
		"http", "send the header x-session-id, or a body with a prompt")
}
