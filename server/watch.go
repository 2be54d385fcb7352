package server

import (
	"cmp"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/router"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// aliveInterval is how often a watcher is sent a message if nothing has changed.
const aliveInterval = time.Second

var errDraining = status.Error(codes.Unavailable, "the server is shutting down")

// maxClientID bounds the name of a client, in bytes.
const maxClientID = 64

type watchStream = grpc.BidiStreamingServer[warmpathv1.WatchReplicasRequest, warmpathv1.WatchReplicasResponse]

// WatchReplicas implements the service.
func (s services) WatchReplicas(stream watchStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if id := start.GetClientId(); id == "" || len(id) > maxClientID {
		return invalid("start.client_id: want 1 to %d bytes in the first message", maxClientID)
	}
	p := s.principalOf(stream.Context())
	d, err := s.named(p, start.GetDeployment())
	if err != nil {
		return err
	}
	w, err := d.watch(p, start)
	if err != nil {
		return err
	}
	defer w.unwatch()
	if err := w.received(first); err != nil {
		return err
	}
	read := make(chan error, 1)
	go func() { // ends with the stream, so after this method at the latest
		read <- shielded(s.log, "WatchReplicas", func() error { return w.listen(stream) })
	}()
	return s.broadcast(w, stream, read)
}

// A watcher is one stream of updates, and what was sent on it.
type watcher struct {
	deployment *deployment
	principal  *principal
	client     *client
	index      bool
	load       bool

	// The state that was sent; used by broadcast alone.
	incarnation          string // still to be sent; "" = sent
	fleet, config, cache uint64 // versions
	sizes                uint64 // version of the sizes of blocks, sent instead of the caches
	greeted              bool   // a fleet was sent; an empty one may have version 0
	view                 int    // of the load …
	interval             uint64 // … sent as of this one
	counted              uint64
	routes               bool // reports of routes were requested
	sent                 time.Time
	outliers             *warmpathv1.OutlierUpdate // nil = none was sent
	ejected              uint64                    // the ejectedVersion that outliers has
	homes                uint64                    // the versions of the homes' weights and of their names
}

// watch opens an account for a client that begins to watch.
func (d *deployment) watch(p *principal, start *warmpathv1.WatchStart) (*watcher, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := p.own(start.GetClientId())
	_, replaces := d.balance.ledger.clients[id] // its own account, before the server has found that the connection is gone
	// Accounts outlive their watches for a while: a client with ever new names must not fill the ledger.
	if most := d.limits.Load().maxWatchers(); d.watchers >= most ||
		!replaces && len(d.balance.ledger.clients) >= 2*most {
		return nil, status.Errorf(codes.ResourceExhausted, "deployment %s has %d watchers: half of max_connections",
			d.name, most)
	}
	most := p.rules.Load().maxWatches
	if replaces {
		most = 0 // no bound: open drops that account
	}
	if !take(&p.accounts, most) {
		return nil, status.Errorf(codes.ResourceExhausted,
			"the principal %s has %d watches, with those that ended a moment ago: a quarter of max_connections", p.name, most)
	}
	d.watchers++
	if start.GetLoad() && d.balance.ledger.empty() {
		d.balance.unsettle(time.Duration(d.limits.Load().LoadInterval), d.now())
	}
	w := &watcher{
		deployment: d, principal: p, client: d.balance.ledger.open(id, p, d.now()),
		index: start.GetIndex(), load: start.GetLoad(), incarnation: d.life,
	}
	if start.GetIncarnation() == d.life {
		w.fleet, w.config, w.cache = start.GetFleetVersion(), start.GetConfigVersion(), start.GetIndexVersion()
	}
	return w, nil
}

func (w *watcher) unwatch() {
	d := w.deployment
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watchers--
	w.client.ended = true
	if d.closed { // no tick drops it
		d.balance.ledger.drop(w.client)
	}
}

// listen applies the client's reports until it ends the stream.
func (w *watcher) listen(stream watchStream) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.GetStart() != nil {
			return invalid("start: sent twice")
		}
		if err := w.principal.pace(stream.Context()); err != nil {
			return err
		}
		if err := w.received(m); err != nil {
			return err
		}
	}
}

// received applies the reports of one message.
func (w *watcher) received(m *warmpathv1.WatchReplicasRequest) error {
	return cmp.Or(w.reported(m.GetReservations()), w.showed(m.GetOutcomes()), w.routed(m.GetRoutes()),
		w.decided(m.GetDecisions()))
}

// decided adds a client's own decisions to those of the server.
func (w *watcher) decided(r *warmpathv1.DecisionReport) error {
	if r == nil {
		return nil
	}
	if n := len(r.GetCounts()); n > maxKinds {
		return invalid("decisions.counts: %d reasons, at most %d may be reported", n, maxKinds)
	}
	w.deployment.tally.reported(w.deployment.hosted.Load().policy(), r)
	return nil
}

// routed applies a client's report on its routes. Those of principals without trust are ignored: they cannot be
// verified.
func (w *watcher) routed(r *warmpathv1.RouteReport) error {
	d := w.deployment
	if r == nil || !w.principal.trusted() {
		return nil
	}
	if len(r.GetRoutes()) > router.MaxRoutes {
		return invalid("routes: more than %d", router.MaxRoutes)
	}
	all, hashes := make([]router.Route, 0, len(r.GetRoutes())), 0
	d.mu.Lock()
	for _, x := range r.GetRoutes() {
		hashes += len(x.GetSuperblocks())
		if m := d.roster.numbered(x.GetReplica()); m != nil && x.GetRank() < uint32(max(m.Ranks, 1)) {
			all = append(all, router.Route{Replica: m.ID, Rank: int(x.GetRank()), Superblocks: x.GetSuperblocks()})
		}
	}
	d.mu.Unlock()
	if hashes > router.MaxRouteHashes {
		return invalid("routes: more than %d hashes", router.MaxRouteHashes)
	}
	d.hosted.Load().received(all)
	return nil
}

func (w *watcher) reported(r *warmpathv1.ReservationReport) error {
	d := w.deployment
	if r == nil {
		return nil
	}
	n := len(r.GetLoads().GetReplicas())
	if len(r.GetLoads().GetOngoing()) != n || len(r.GetLoads().GetQueuedTokens()) != n {
		return invalid("reservations.loads: its columns differ in length")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > len(d.roster.order)+maxDepartures {
		return invalid("reservations.loads: %d replicas, where there are %d", n, len(d.roster.order))
	}
	if r.GetNumber() <= w.client.last {
		return invalid("reservations.number: %d does not follow %d", r.GetNumber(), w.client.last)
	}
	d.balance.ledger.take(w.client, r, d.now())
	return nil
}

// broadcast sends the news of the deployment until the stream ends. A watcher whose permission has ended is sent none.
func (s *Server) broadcast(w *watcher, stream watchStream, read <-chan error) error {
	alive := time.NewTicker(aliveInterval)
	defer alive.Stop()
	d := w.deployment
	for {
		news, wake, ended := w.news()
		moved := s.authenticator.moved.wait()
		err := s.revoked(stream.Context(), w.principal)
		switch {
		case !s.serving():
			return errDraining
		case err != nil:
			return err
		case !w.principal.may(d.name):
			return status.Errorf(codes.PermissionDenied,
				"the principal %q may not use the deployment %q any more", w.principal.name, d.name)
		case ended:
			return status.Errorf(codes.NotFound, "the deployment %s was removed from the config", d.name)
		}
		for _, m := range news {
			if err := stream.Send(m); err != nil {
				return err
			}
			d.tally.sent(m)
		}
		select {
		case <-wake:
		case <-moved:
		case <-alive.C:
		case err := <-read:
			return err
		case <-s.draining.Done():
		}
	}
}

// news is the changes since the last messages to a watcher, none if nothing has changed and one was sent lately; wake
// is closed when there may be more.
func (w *watcher) news() (all []*warmpathv1.WatchReplicasResponse, wake <-chan struct{}, ended bool) {
	d := w.deployment
	d.mu.Lock()
	defer d.mu.Unlock()
	wake = d.wake.wait()
	m := &warmpathv1.WatchReplicasResponse{Incarnation: w.incarnation}
	if w.config != d.pushed.Version {
		m.Config = d.pushed
	}
	all = append(all, m)
	if !w.greeted || w.fleet != d.roster.version {
		for i, part := range d.roster.since(w.fleet) {
			if i > 0 {
				m = new(warmpathv1.WatchReplicasResponse)
				all = append(all, m)
			}
			m.Fleet = part
		}
	}
	x := d.hosted.Load().index
	reads := x != nil && w.index && w.principal.trusted()
	var caches []*warmpathv1.IndexUpdate
	switch {
	case reads:
		caches = x.since(w.cache, d.roster.numberOf)
	case x != nil && w.index:
		m.Index, w.sizes = x.sizesSince(w.sizes)
	}
	for i, u := range caches {
		if i > 0 {
			m = new(warmpathv1.WatchReplicasResponse)
			all = append(all, m)
		}
		m.Index, w.cache = u, u.Version
	}
	if wanted := reads && x.predicts(); wanted != w.routes {
		m.RoutesWanted, w.routes = proto.Bool(wanted), wanted
	}
	now := d.now()
	m.Load = w.loadUpdate(&d.balance, time.Duration(d.limits.Load().LoadInterval), now)
	m.Outliers = d.outliersFor(w)
	if at := d.homes.version + uint64(d.roster.last); w.homes != at { // a replica that joins may have a weight from before
		m.Homes, w.homes = d.homes.update(&d.roster), at
	}
	quiet := len(all) == 1 && proto.Equal(m, new(warmpathv1.WatchReplicasResponse)) // its size costs O(replicas)
	if quiet && now.Sub(w.sent) < aliveInterval {
		return nil, wake, d.closed
	}
	w.incarnation, w.fleet, w.config, w.sent, w.greeted = "", d.roster.version, d.pushed.Version, now, true
	return all, wake, d.closed
}

// loadUpdate is the load that has changed for a watcher, nil if none has.
func (w *watcher) loadUpdate(b *balance, interval time.Duration, now time.Time) *warmpathv1.LoadUpdate {
	if v := w.principal.view(); w.view != v { // the principal's trust has changed
		w.view, w.interval = v, 0
	}
	if !w.load || w.interval == b.interval {
		return nil
	}
	u := b.since(w.view, w.interval)
	u.Counted = w.client.counted
	u.NextMs = uint32(max(b.at.Add(interval).Sub(now), 0).Milliseconds())
	known := w.interval != 0 && w.counted == u.Counted && !u.StaleSet && len(u.GetLoads().GetReplicas()) == 0
	w.interval, w.counted = b.interval, u.Counted
	if known {
		return nil
	}
	return u
}

// A signal wakes all goroutines that wait for it, each time it is given. Safe for use by many goroutines; the zero
// value is ready.
type signal struct {
	mu   sync.Mutex // guards next; nothing is locked under it
	next chan struct{}
}

// wait returns a channel that is closed when the signal is given next. To miss no change, call it before reading the
// state.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

func (s *signal) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}
