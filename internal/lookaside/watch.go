package lookaside

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/outlier"
)

// A Watch follows the look-aside servers of one channel. Safe for use by many goroutines.
type Watch struct {
	o      Options
	client string // our name towards servers

	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	resync chan struct{} // holds one: the whole index is wanted
	routes routes

	// reserved and talking belong to those who ask the server: see Desk.
	reserved *reserved
	desk     chan struct{} // closed when somebody wants to ask
	wantDesk func()
	talking  atomic.Pointer[conversation] // nil = nobody can be asked

	// telling makes calls of Options.Changed come one after the other. It is taken before mu; the channel's locks and
	// the balancer's are taken under it.
	telling sync.Mutex

	// mu guards what follows. A balancer takes it under its own; only the Routers' are taken under it.
	mu          sync.Mutex
	routers     []*routing.Router
	members     members
	config      string
	untold      bool // Changed is to be told
	incarnation string
	versions    versions
	ledger      *ledger // of the server that is followed
	hearsay     routing.Hearsay
	others      []routing.ForeignLoad // what the Routers were told
	heard       time.Time             // when a server last said anything
	silent      bool                  // … and it is so long ago that its ejections are not in force
	begun       time.Time             // when a server began to be followed
	resumed     bool                  // it knew us
	unknown     time.Time             // since when it says that it knows nobody's load; zero = it knows
	caches      caches
	ejected     map[string]outlier.State // by the server
	wantIndex   bool                     // all of it, at the next opportunity
}

// versions are those of the incarnation.
type versions struct{ config, fleet, index uint64 }

// Start begins to watch. What was known before is told from within.
func Start(o Options) *Watch {
	o.Timing = o.Timing.withDefaults()
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := &Watch{o: o, client: rand.Text(), resync: make(chan struct{}, 1), ledger: newLedger(), reserved: newReserved(), desk: make(chan struct{})}
	w.wantDesk = sync.OnceFunc(func() { close(w.desk) })
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if o.Known != nil {
		w.members.recall(o.Known.Replicas)
		w.config = o.Known.ServiceConfig
		w.untold = true
		w.tell()
	}
	w.ended.Go(w.run)
	w.ended.Go(w.keep)
	return w
}

// Close ends the watch and returns when nobody is told of anything any more.
func (w *Watch) Close() {
	w.cancel()
	w.ended.Wait()
}

// Attach begins to tell a Router what is known of load and caches, and to report its bookings. The Router's fleet must
// have been set. detach ends it, and takes back what was told.
func (w *Watch) Attach(r *routing.Router) (detach func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routers = append(w.routers, r)
	w.tellCapacities(r)
	r.SetForeignLoad(w.others)
	if !w.silent {
		w.eject(r)
	}
	r.ShareRoutes(w.routes.note)
	if r.ObservesCache() && (len(w.caches.told) > 0 || w.versions.index > 0) {
		w.wantIndex = true
		select {
		case w.resync <- struct{}{}:
		default:
		}
	}
	return sync.OnceFunc(func() { w.detach(r) })
}

func (w *Watch) detach(r *routing.Router) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.ShareRoutes(nil)
	for i := range w.routers {
		if w.routers[i] == r {
			w.routers = append(w.routers[:i:i], w.routers[i+1:]...)
			break
		}
	}
	nothing := make([]routing.ForeignLoad, len(w.others))
	for i := range nothing {
		nothing[i].ID = w.others[i].ID
	}
	r.SetForeignLoad(nothing)
	r.CacheChanged(w.caches.clearing())
	forsake(r)
}

// tell gives the state to the channel where it is news.
func (w *Watch) tell() {
	w.telling.Lock()
	defer w.telling.Unlock()
	w.mu.Lock()
	if !w.untold || !w.members.known {
		w.mu.Unlock()
		return
	}
	w.untold = false
	s := State{Replicas: w.members.all(), ServiceConfig: w.config}
	w.mu.Unlock()
	w.o.Changed(w, s)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.routers {
		w.tellCapacities(r)
	}
}

// tellCapacities tells how large the replicas' caches are. Called with mu held.
func (w *Watch) tellCapacities(r *routing.Router) {
	for _, m := range w.members.named {
		r.ReplicaCapacity(m.ID, m.kvTokens)
	}
}

// connected reports whether a Router has a connection to a replica. Called with mu held.
func (w *Watch) connected(id string) bool {
	for _, r := range w.routers {
		if rep := r.View().ByID(id); rep != nil && rep.Connected() {
			return true
		}
	}
	return false
}

// keep lets replicas go that need not stay any more, and load fade of which nothing is heard.
func (w *Watch) keep() {
	t := time.NewTicker(w.o.Timing.Step)
	defer t.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case now := <-t.C:
			w.mu.Lock()
			w.settle(now)
			w.fade(now)
			w.mu.Unlock()
			w.tell()
		}
	}
}

// settle lets replicas go that need not stay. Called with mu held.
func (w *Watch) settle(now time.Time) {
	if w.members.settle(now, w.connected) {
		w.untold = true
	}
}

// fade halves what is believed of others' load once for each Step of silence, or while nothing of it is known. Called with
// mu held.
func (w *Watch) fade(now time.Time) {
	silent := now.Sub(w.heard) >= w.o.Timing.Fade
	if silent && !w.silent {
		w.silent = true
		w.suspendOutliers()
	}
	if !silent && (w.unknown.IsZero() || now.Sub(w.unknown) < w.o.Timing.Fade) {
		return
	}
	left := false
	for i := range w.others {
		f := &w.others[i]
		left = left || f.Ongoing > 0 || f.QueuedTokens > 0
		f.Ongoing /= 2
		f.QueuedTokens /= 2
	}
	if left {
		w.tellLoad()
	}
}

// believes reports whether others are believed to have any load. Called with mu held.
func (w *Watch) believes() bool {
	return slices.ContainsFunc(w.others, func(f routing.ForeignLoad) bool { return f.Ongoing > 0 || f.QueuedTokens > 0 })
}

// tellLoad gives the Routers what is believed of others. Called with mu held.
func (w *Watch) tellLoad() {
	for _, r := range w.routers {
		r.SetForeignLoad(w.others)
	}
}

type stateKey struct{}

// SetWatch returns the resolver state with the channel's Watch in it.
func SetWatch(s resolver.State, w *Watch) resolver.State {
	s.Attributes = s.Attributes.WithValue(stateKey{}, w)
	return s
}

// From returns the Watch in a resolver's state, or nil.
func From(s resolver.State) *Watch {
	w, _ := s.Attributes.Value(stateKey{}).(*Watch)
	return w
}

var (
	errSilent = errors.New("nothing was heard of it")
	errBetter = errors.New("a server that comes before it can be reached again")
	errResync = errors.New("the whole index is wanted")
)
