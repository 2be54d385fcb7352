package lookaside

import (
	"iter"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A view is what a channel has adopted from its servers, and the Routers in which that is in force. It outlives the
// streams. Safe for use by many goroutines.
type view struct {
	o       *Options
	central *Central
	changed func(State)
	resync  chan struct{} // holds one: the whole index is wanted
	routes  routes

	// publishing serialises the calls of changed. It is taken before mu; the channel's locks and the balancer's are
	// taken under it.
	publishing sync.Mutex

	// mu guards the fields below. A balancer takes it under its own; the Routers' and central's are taken under it.
	mu        sync.Mutex
	routers   []*router.Router
	retired   router.Retired         // detached
	decided   router.Decided         // by the Routers that are detached, and not reported
	adopted   *warmpathv1.WatchStart // the server's incarnation, and its versions
	members   members
	config    string
	dirty     bool // there is a State to publish
	load      peerLoad
	caches    caches
	ejected   map[string]outlier.State // by the server
	homes     map[string]float64       // weights of the homes; they stay until a server sends others
	wantIndex bool                     // all of it, at the next opportunity

	received time.Time // when a server last sent anything
	begun    time.Time // when the server began to be followed
	resumed  bool      // it is the incarnation that was followed before
}

func newView(o *Options, client string, c *Central) *view {
	return &view{
		o: o, central: c, resync: make(chan struct{}, 1),
		adopted: &warmpathv1.WatchStart{Deployment: o.Deployment, ClientId: client, Index: true, Load: true},
		members: newMembers(), caches: make(caches), load: peerLoad{ledger: newLedger()},
	}
}

// recall begins with what was known before.
func (v *view) recall(s State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.members.recall(s.Replicas)
	v.config, v.dirty = s.ServiceConfig, true
}

// known reports whether the replicas are.
func (v *view) known() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.members.known
}

// publish gives the channel a State that has changed.
func (v *view) publish() {
	v.publishing.Lock()
	defer v.publishing.Unlock()
	v.mu.Lock()
	if !v.dirty || !v.members.known {
		v.mu.Unlock()
		return
	}
	v.dirty = false
	s := State{Replicas: v.members.all(), ServiceConfig: v.config}
	v.mu.Unlock()
	v.changed(s)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.routers {
		v.setCapacities(r)
	}
}

// attach puts the view into force in a Router.
func (v *view) attach(r *router.Router) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.routers = append(v.routers, r)
	v.retired = slices.DeleteFunc(v.retired, func(x *router.Router) bool { return r.Inherits(x) })
	v.setCapacities(r)
	r.Load.SetDrift(v.load.damping.Drift())
	r.Load.SetPeers(v.load.peers)
	r.Load.SetHomes(v.homes)
	v.eject(r)
	r.Routes.Share(v.routes.note)
	r.Decisions.Begin()
	if r.ObservesCache() && (len(v.caches) > 0 || v.adopted.IndexVersion > 0) {
		v.wantIndex = true
		select {
		case v.resync <- struct{}{}:
		default:
		}
	}
}

func (v *view) detach(r *router.Router) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r.Routes.Share(nil)
	r.Decisions.Take(&v.decided)
	v.routers = slices.DeleteFunc(v.routers, func(x *router.Router) bool { return x == r })
	v.retired = append(v.retired, r)
	nothing := make([]routerload.Peer, len(v.load.peers))
	for i := range nothing {
		nothing[i].ID = v.load.peers[i].ID
	}
	r.Load.SetPeers(nothing)
	r.CacheChanged(v.caches.clearing())
	r.Outliers().Inherit()
	r.Health.Sync()
}

// setCapacities gives a Router the sizes of the replicas' caches. Called with mu held.
func (v *view) setCapacities(r *router.Router) {
	for _, m := range v.members.named {
		r.Fleet.SetCapacity(m.ID, m.kvTokens)
	}
}

// tick drops replicas that need not stay, and applies the time without messages or without load.
func (v *view) tick(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.settle(now)
	v.fade(now)
}

// settle drops replicas that need not stay. Called with mu held.
func (v *view) settle(now time.Time) {
	changed := v.members.settle(now, func(id string) bool {
		for _, rep := range v.replicas(id) {
			if rep.Connected() {
				return true
			}
		}
		return false
	})
	v.dirty = v.dirty || changed
}

// replicas are the Routers that have a replica of this id, with theirs. Called with mu held.
func (v *view) replicas(id string) iter.Seq2[*router.Router, *policy.Replica] {
	return func(yield func(*router.Router, *policy.Replica) bool) {
		for _, r := range v.routers {
			if rep := r.View().ByID(id); rep != nil && !yield(r, rep) {
				return
			}
		}
	}
}

// fade suspends the ejections of a server that is silent for long, and halves the peer load once for each Step of
// silence, or while the server does not have it. Called with mu held.
func (v *view) fade(now time.Time) {
	if now.Sub(v.received) >= fadeAfter {
		v.inherit()
	}
	if now.Sub(v.load.fresh) >= fadeAfter && v.load.halve() {
		v.setLoad()
	}
}

// setLoad gives the Routers the peer load. Called with mu held.
func (v *view) setLoad() {
	for _, r := range v.routers {
		r.Load.SetDrift(v.load.damping.Drift())
		r.Load.SetPeers(v.load.peers)
	}
}

// start is the first message of a watch: what is known already.
func (v *view) start() *warmpathv1.WatchStart {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-v.resync: // this message asks for it
	default:
	}
	s := proto.CloneOf(v.adopted)
	if v.wantIndex {
		s.IndexVersion = 0
	}
	return s
}

// report returns what a server is to be sent now; a part is nil where there is nothing to report. renew asks for the
// load although it has not changed.
func (v *view) report(renew bool) *warmpathv1.WatchReplicasRequest {
	v.mu.Lock()
	defer v.mu.Unlock()
	numbers := v.members.numbers()
	decisions := v.decisions() // before the Routers that are retired and idle are dropped
	return &warmpathv1.WatchReplicasRequest{
		Reservations: v.load.ledger.report(numbers, v.ownLoad(numbers), renew),
		Routes:       v.routes.report(v.members.named),
		Outcomes:     v.outcomes(),
		Decisions:    decisions,
	}
}

// ownLoad is what the channel's Routers have reserved on each replica, without what the server itself reserved for
// them. Called with mu held.
func (v *view) ownLoad(numbers []uint32) []load {
	own, reserved, retired := make([]load, len(numbers)), v.central.reserved(), v.retired.Load()
	for i, n := range numbers {
		id := v.members.named[n].ID
		own[i] = load{int64(retired[id].Ongoing), retired[id].QueuedTokens}
		for _, rep := range v.replicas(id) {
			own[i].add(rep)
		}
		own[i] = own[i].less(reserved[id])
	}
	return own
}

// take adopts a message of the server; first is set for the first one of a stream.
func (v *view) take(m *warmpathv1.WatchReplicasResponse, first bool) {
	now := time.Now()
	v.takeMembers(m, first, now)
	v.publish() // the Routers learn the replicas before what is known of them
	v.mu.Lock()
	defer v.mu.Unlock()
	if u := m.GetIndex(); u != nil {
		v.takeIndex(u)
	}
	if u := m.GetLoad(); u != nil {
		v.takeLoad(u)
	}
	if v.load.halved { // an update after silence has only what has changed since
		v.adoptLoad()
	}
	if v.load.ledger.known(v.members.numbers()) {
		v.load.fresh = now
	}
	if u := m.GetOutliers(); u != nil {
		v.takeOutliers(u)
	}
	if u := m.GetHomes(); u != nil {
		v.takeHomes(u)
	}
}

// takeMembers adopts the replicas and the config of a message.
func (v *view) takeMembers(m *warmpathv1.WatchReplicasResponse, first bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.received = now
	if first {
		v.begin(m.GetIncarnation(), now)
	}
	if m.RoutesWanted != nil {
		v.routes.want(m.GetRoutesWanted())
	}
	if c := m.GetConfig(); c != nil {
		v.dirty = v.dirty || c.GetServiceConfig() != v.config
		v.config, v.adopted.ConfigVersion = c.GetServiceConfig(), c.GetVersion()
	}
	if u := m.GetFleet(); u != nil {
		if u = v.members.gather(u); u != nil {
			v.takeFleet(u)
		}
	}
	v.settle(now)
}

// begin prepares for the first message of a server. Called with mu held.
func (v *view) begin(incarnation string, now time.Time) {
	v.begun, v.resumed = now, incarnation == v.adopted.Incarnation
	if !v.resumed {
		v.adopted.Incarnation = incarnation
		v.adopted.ConfigVersion, v.adopted.FleetVersion, v.adopted.IndexVersion = 0, 0, 0
		v.members.restart()
		v.inherit()
		v.ejected = nil
		v.central.forget()
	}
	v.routes.want(false) // unless the server asks for them
	v.members.begin(now.Add(v.o.Timing.Grace))
	v.load.begin()
}

// takeFleet adopts a change of the membership. Called with mu held.
func (v *view) takeFleet(u *warmpathv1.FleetUpdate) {
	left, err := v.members.take(u)
	if err != nil {
		v.o.Logger.Warn("warmpath: the look-aside server names a replica that cannot be",
			"deployment", v.o.Deployment, "error", err)
	}
	for _, n := range left {
		v.load.ledger.forget(n)
	}
	v.adopted.FleetVersion, v.dirty = u.GetVersion(), true
	there := make(map[string]bool)
	for _, r := range v.members.all() {
		there[r.ID] = true
	}
	v.caches.forget(there)
}

// takeIndex passes on what has changed in the replicas' caches. Called with mu held.
func (v *view) takeIndex(u *warmpathv1.IndexUpdate) {
	if u.GetSnapshot() {
		v.wantIndex = false
	}
	if version := u.GetVersion(); version > 0 {
		v.adopted.IndexVersion = version
	}
	changes := v.caches.take(u, v.members.named)
	for _, r := range v.routers {
		r.CacheChanged(changes)
	}
}

// counting is how long a server may take to count a first report. Until then its load may still have in it what this
// client reported in the watch before, as if it were a peer's; or, where it is another server, lack the load of peers
// that come over at the same time. The peer load of before is better.
const counting = time.Second

// takeLoad adopts the load of all clients. Called with mu held.
func (v *view) takeLoad(u *warmpathv1.LoadUpdate) {
	if err := v.load.ledger.take(u); err != nil {
		v.o.Logger.Warn("warmpath: the look-aside server's load is passed over",
			"deployment", v.o.Deployment, "error", err)
		return
	}
	if u.GetCounted() == 0 && (v.resumed || v.load.any()) && time.Since(v.begun) < counting {
		return
	}
	v.adoptLoad()
}

// adoptLoad puts the peer load in the ledger into force. Called with mu held.
func (v *view) adoptLoad() {
	if v.load.adopt(&v.members, v.central.reserved(), v.retired.Load()) {
		v.setLoad()
	}
}

// takeOutliers adopts which replicas the server ejects. Called with mu held.
func (v *view) takeOutliers(u *warmpathv1.OutlierUpdate) {
	v.ejected = make(map[string]outlier.State, len(u.GetReplicas()))
	for _, p := range u.GetReplicas() {
		if r, ok := v.members.named[p.GetReplica()]; ok {
			v.ejected[r.ID] = outlier.Ejected
			if p.GetProbe() {
				v.ejected[r.ID] = outlier.HalfOpen
			}
		}
	}
	for _, r := range v.routers {
		v.eject(r)
	}
}

// takeHomes adopts the weights of the homes. Called with mu held.
func (v *view) takeHomes(u *warmpathv1.HomeUpdate) {
	v.homes = fleet.HomeWeights(u, func(n uint32) string { return v.members.named[n].ID })
	for _, r := range v.routers {
		r.Load.SetHomes(v.homes)
	}
}

// eject puts the server's ejections into force in a Router. Called with mu held.
func (v *view) eject(r *router.Router) {
	server := make(map[*outlier.Replica]outlier.State, len(v.ejected))
	for id, s := range v.ejected {
		if rep := r.View().ByID(id); rep != nil {
			server[r.Outlier(rep)] = s
		}
	}
	r.Outliers().Follow(server)
	r.Health.Sync()
}

// inherit has the ejections of a server that is silent or gone probed, whatever a server ejects from then on. Called
// with mu held.
func (v *view) inherit() {
	for _, r := range v.routers {
		r.Outliers().Inherit()
		r.Health.Sync()
	}
}

// outcomes are the results of the Routers' calls since the last report, nil for none. Called with mu held.
func (v *view) outcomes() *warmpathv1.OutcomeReport {
	report := new(warmpathv1.OutcomeReport)
	for number, m := range v.members.named {
		o := &warmpathv1.ReplicaOutcomes{Replica: number}
		for r, rep := range v.replicas(m.ID) {
			c := r.Outliers().Take(r.Outlier(rep))
			o.Successes += uint32(c.Successes)
			o.Failures += uint32(c.Failures)
			o.Late += uint32(c.Late)
			homes, spilled := part.OfReplica(rep).TakeHomes()
			o.Homes, o.Spilled = o.Homes+homes, o.Spilled+spilled
		}
		if o.Successes+o.Failures+o.Late+o.Homes > 0 {
			report.Replicas = append(report.Replicas, o)
		}
	}
	for _, r := range v.routers {
		r.Health.Sync()
	}
	if len(report.Replicas) == 0 {
		return nil
	}
	return report
}

// decisions are the sums of what the Routers decided since the last report, nil for none. Called with mu held.
func (v *view) decisions() *warmpathv1.DecisionReport {
	for _, r := range v.routers {
		r.Decisions.Take(&v.decided)
	}
	for _, r := range v.retired {
		r.Decisions.Take(&v.decided)
	}
	sums := v.decided
	v.decided = router.Decided{}
	if len(sums.Reasons) == 0 && sums.Prompt == 0 {
		return nil
	}
	report := new(warmpathv1.DecisionReport)
	for why, n := range sums.Reasons {
		report.Counts = append(report.Counts, &warmpathv1.DecisionCount{Reason: string(why), Count: n})
	}
	if sums.Prompt > 0 {
		report.CachedTokens = &warmpathv1.CachedTokens{Prompt: sums.Prompt, Predicted: sums.Matched, Measured: sums.Cached}
	}
	return report
}
