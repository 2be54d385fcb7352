package lookaside

import (
	"context"
	"io"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

type stream = warmpathv1.RoutingService_WatchReplicasClient

// following is one watch of one server.
type following struct {
	w        *Watch
	stream   stream
	interval time.Duration // between two updates of the load
	due      time.Time     // of the report that is to be in the next one
	reported time.Time
	met      bool // it was sent a report
}

// follow watches a server until that ends, and says why. better is the server to go to after errBetter.
func (w *Watch) follow(servers []*server, at int) (heard bool, better int, err error) {
	cc, err := servers[at].dial(w.o.Dial)
	if err != nil {
		return false, 0, err
	}
	ctx, cancel := context.WithCancelCause(w.ctx)
	defer cancel(nil)
	// A server that hangs does not read either: whatever blocks ends with ctx.
	silence := time.AfterFunc(w.o.Timing.Silence, func() { cancel(errSilent) })
	defer silence.Stop()
	f := &following{w: w, interval: w.o.Timing.Interval}
	if f.stream, err = warmpathv1.NewRoutingServiceClient(cc).WatchReplicas(ctx); err == nil {
		err = f.stream.Send(&warmpathv1.WatchReplicasRequest{Start: w.start()})
		if err == io.EOF { // the stream has ended, and Recv says why
			_, err = f.stream.Recv()
		}
	}
	if err != nil {
		return false, 0, because(ctx, err)
	}
	messages := f.receive(ctx, cancel, silence)
	found := w.awaitBetter(ctx, servers[:at])
	var desk <-chan struct{} // nil until the server is known to be one
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case m := <-messages:
			w.take(m, !heard)
			if !heard {
				w.o.Logger.Info("warmpath: following a look-aside server", "server", servers[at].address, "deployment", w.o.Deployment)
				f.report()
				desk = w.desk
			}
			heard = true
			f.schedule(m.GetLoad())
		case <-timer.C:
			f.report()
		case <-desk:
			desk = nil
			w.ended.Go(func() { w.converse(ctx, cc) })
		case i := <-found:
			return heard, i, errBetter
		case <-w.resync:
			return heard, 0, errResync
		case <-ctx.Done():
			return heard, 0, because(ctx, ctx.Err())
		}
		timer.Reset(f.wait())
	}
}

// receive passes on what the server says, until ctx ends. It ends ctx where the stream does.
func (f *following) receive(ctx context.Context, cancel context.CancelCauseFunc, silence *time.Timer) <-chan *warmpathv1.WatchReplicasResponse {
	messages := make(chan *warmpathv1.WatchReplicasResponse)
	f.w.ended.Go(func() {
		for {
			m, err := f.stream.Recv()
			if err != nil {
				cancel(err)
				return
			}
			silence.Reset(f.w.o.Timing.Silence)
			select {
			case messages <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	return messages
}

// because is why a watch ended: the context's cause where there is one.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// start says what is known already.
func (w *Watch) start() *warmpathv1.WatchStart {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.resync: // is about to be done
	default:
	}
	s := &warmpathv1.WatchStart{
		Deployment:    w.o.Deployment,
		ClientId:      w.client,
		Incarnation:   w.incarnation,
		FleetVersion:  w.versions.fleet,
		ConfigVersion: w.versions.config,
		IndexVersion:  w.versions.index,
		Index:         true,
		Load:          true,
	}
	if w.wantIndex {
		s.IndexVersion = 0
	}
	return s
}

// Reports are sent in the last tenth of the interval, so that an update tells of what has just been booked; the end
// of it is left for the way. Bookings are reported after renewAfter even so.
const renewAfter = 900 * time.Millisecond

// schedule sets when the next report is due.
func (f *following) schedule(u *warmpathv1.LoadUpdate) {
	if u == nil {
		return
	}
	next := min(time.Duration(u.GetNextMs())*time.Millisecond, time.Minute)
	// The first update comes in the midst of an interval.
	f.interval = max(next, f.interval/2, time.Millisecond)
	f.due = time.Now().Add(max(next-f.interval/10, 0) + rand.N(f.interval/10)*8/10)
}

// wait is the time to the next report.
func (f *following) wait() time.Duration {
	now := time.Now()
	if !f.due.After(now) { // where nothing changes no update comes: the reports keep their place in the interval
		f.due = f.due.Add(f.interval)
	}
	if !f.due.After(now) {
		f.due = now.Add(f.interval)
	}
	return max(min(f.due.Sub(now), f.reported.Add(renewAfter).Sub(now)), 0)
}

// report tells the server what is booked, if that is news. An error shows in what is received.
func (f *following) report() {
	now := time.Now()
	renew := now.Sub(f.reported) >= renewAfter
	f.w.mu.Lock()
	numbers := f.w.members.numbers()
	r := f.w.ledger.report(numbers, f.w.booked(numbers), renew)
	routes := f.w.routes.report(f.w.members.named)
	outcomes := f.w.outcomes(!f.met)
	f.met = true
	f.w.mu.Unlock()
	if r != nil || renew {
		f.reported = now
	}
	if r != nil || routes != nil || outcomes != nil {
		_ = f.stream.Send(&warmpathv1.WatchReplicasRequest{Bookings: r, Routes: routes, Outcomes: outcomes})
	}
}

// booked is what our Routers have booked on each replica, without what the server itself reserved for us. Called with mu held.
func (w *Watch) booked(numbers []uint32) []book {
	booked := make([]book, len(numbers))
	for _, r := range w.routers {
		v := r.View()
		for i, n := range numbers {
			if rep := v.ByID(w.members.named[n].ID); rep != nil {
				booked[i].ongoing += int64(rep.Ongoing())
				booked[i].tokens += int64(rep.QueuedTokens())
			}
		}
	}
	for i, n := range numbers {
		r := w.reserved.on(w.members.named[n].ID)
		booked[i] = book{max(booked[i].ongoing-r.ongoing, 0), max(booked[i].tokens-r.tokens, 0)}
	}
	return booked
}

// take enters a message of the server.
func (w *Watch) take(m *warmpathv1.WatchReplicasResponse, first bool) {
	now := time.Now()
	w.mu.Lock()
	again := w.silent && !first
	w.heard, w.silent = now, false
	if first {
		w.begin(m.GetIncarnation(), now)
	}
	if m.RoutesWanted != nil {
		w.routes.want(m.GetRoutesWanted())
	}
	if c := m.GetConfig(); c != nil {
		w.untold = w.untold || c.GetServiceConfig() != w.config
		w.config, w.versions.config = c.GetServiceConfig(), c.GetVersion()
	}
	if u := m.GetFleet(); u != nil {
		w.takeFleet(u)
	}
	w.settle(now)
	w.mu.Unlock()
	w.tell()
	w.mu.Lock()
	defer w.mu.Unlock()
	if again { // what it says now is only what has changed
		w.putOutliers()
		w.believe()
	}
	if u := m.GetIndex(); u != nil {
		w.takeIndex(u)
	}
	if u := m.GetLoad(); u != nil {
		w.takeLoad(u)
	}
	if u := m.GetOutliers(); u != nil {
		w.takeOutliers(u)
	}
}

// begin takes a server's first word. Called with mu held.
func (w *Watch) begin(incarnation string, now time.Time) {
	w.begun, w.resumed, w.unknown = now, incarnation == w.incarnation, time.Time{}
	if !w.resumed {
		w.incarnation, w.versions = incarnation, versions{}
		w.members.restart()
		w.suspendOutliers()
		w.ejected = nil
		w.reserved.forget()
	}
	w.routes.want(false) // until it says otherwise
	w.members.begin(now.Add(w.o.Timing.Grace))
	w.ledger = newLedger()
}

// takeFleet takes a change of the membership. Called with mu held.
func (w *Watch) takeFleet(u *warmpathv1.FleetUpdate) {
	left, err := w.members.take(u)
	if err != nil {
		w.o.Logger.Warn("warmpath: the look-aside server tells of a replica that cannot be", "deployment", w.o.Deployment, "error", err)
	}
	for _, n := range left {
		w.ledger.forget(n)
	}
	w.versions.fleet, w.untold = u.GetVersion(), true
	there := make(map[string]bool)
	for _, r := range w.members.all() {
		there[r.ID] = true
	}
	w.caches.forget(there)
}

// takeIndex passes on what has changed in the replicas' caches. Called with mu held.
func (w *Watch) takeIndex(u *warmpathv1.IndexUpdate) {
	if u.GetSnapshot() {
		w.wantIndex = false
	}
	if v := u.GetVersion(); v > 0 {
		w.versions.index = v
	}
	changes := w.caches.take(u, w.members.named)
	for _, r := range w.routers {
		r.CacheChanged(changes)
	}
}

// counting is how long a server may take to count a first report. Until then its load may still have in it what we
// reported in the watch before, as if others had booked it; or, where it is another server, lack what others have booked,
// who come over together with us. What was believed before is better.
const counting = time.Second

// takeLoad passes on what others have booked. Called with mu held.
func (w *Watch) takeLoad(u *warmpathv1.LoadUpdate) {
	if err := w.ledger.take(u); err != nil {
		w.o.Logger.Warn("warmpath: the look-aside server's load is passed over", "deployment", w.o.Deployment, "error", err)
		return
	}
	if u.GetCounted() == 0 && (w.resumed || w.believes()) && time.Since(w.begun) < counting {
		return
	}
	w.believe()
}

// believe passes on what the server has said of others' bookings. Called with mu held.
func (w *Watch) believe() {
	numbers := w.members.numbers()
	if !w.ledger.knows(numbers) {
		if w.unknown.IsZero() {
			w.unknown = time.Now()
		}
		return
	}
	w.unknown = time.Time{}
	w.others = make([]routing.ForeignLoad, len(numbers), len(numbers)+len(w.members.kept))
	for i, n := range numbers {
		w.others[i].ID = w.members.named[n].ID
	}
	w.ledger.others(numbers, w.others)
	for i := range w.others { // what is reserved for us counts there as another's
		r := w.reserved.on(w.others[i].ID)
		w.others[i].Ongoing = max(w.others[i].Ongoing-int(r.ongoing), 0)
		w.others[i].QueuedTokens = max(w.others[i].QueuedTokens-r.tokens, 0)
	}
	w.hearsay.Temper(w.others)
	for id := range w.members.kept {
		w.others = append(w.others, routing.ForeignLoad{ID: id})
	}
	w.tellLoad()
}
