package lookaside

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/router"
)

// A Watch follows the look-aside servers of one channel. Safe for use by many goroutines.
type Watch struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	view   *view
	desk   *desk
}

// Start begins to watch. Options.Known is passed to Options.Changed from within.
func Start(o Options) *Watch {
	o.Timing = o.Timing.withDefaults()
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := newWatch(o)
	if o.Known != nil {
		w.view.recall(*o.Known)
		w.view.publish()
	}
	w.ended.Go(w.run)
	w.ended.Go(w.tick)
	return w
}

func newWatch(o Options) *Watch {
	w := &Watch{o: o, desk: newDesk()}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.view = newView(&w.o, rand.Text(), w.desk.reserved)
	w.view.changed = func(s State) { w.o.Changed(w, s) }
	return w
}

// Close ends the watch. After it returns, no function of the options is called.
func (w *Watch) Close() {
	w.cancel()
	w.ended.Wait()
}

// Attach gives a Router load, caches and ejections from now on, and reports its reservations. The Router's fleet must
// have been set. detach ends it, and takes back what was given.
func (w *Watch) Attach(r *router.Router) (detach func()) {
	w.view.attach(r)
	return sync.OnceFunc(func() { w.view.detach(r) })
}

// Desk returns what asks the servers of the watch where a call is to go, waiting for an answer at most until the
// deadline.
func (w *Watch) Desk(deadline time.Duration) *Desk {
	w.desk.open()
	return &Desk{desk: w.desk, deployment: w.o.Deployment, deadline: deadline}
}

// tick applies what follows from time alone: replicas that need not stay go, and peer load fades while it is unknown.
func (w *Watch) tick() {
	t := time.NewTicker(w.o.Timing.Step)
	defer t.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case now := <-t.C:
			w.view.tick(now)
			w.view.publish()
		}
	}
}

// run follows one server after the other.
func (w *Watch) run() {
	servers := make([]*server, 0, len(w.o.Servers))
	for _, address := range Rank(w.o.Servers, w.o.Deployment) {
		servers = append(servers, &server{address: address})
	}
	defer func() {
		for _, s := range servers {
			s.close()
		}
	}()
	tries, at := 0, 0 // tries since the last message of a server
	for w.ctx.Err() == nil {
		began := time.Now()
		answered, better, err := w.follow(servers, at)
		if answered {
			tries = 0
		}
		switch {
		case w.ctx.Err() != nil:
			return
		case errors.Is(err, errResync):
			continue
		case errors.Is(err, errBetter):
			at = better
			continue
		}
		w.lost(servers[at], began, err, tries == 0)
		tries++
		at = (at + 1) % len(servers)
		if tries%len(servers) == 0 {
			if !w.view.known() {
				w.o.Failed(fmt.Errorf("warmpath: no look-aside server has named the replicas of %q: %w", w.o.Deployment, err))
			}
			w.pause(servers[0], tries/len(servers))
		}
	}
}

// lost notes that a server cannot be followed.
func (w *Watch) lost(s *server, began time.Time, err error, first bool) {
	if time.Since(began) > w.o.Timing.Return {
		s.lost = 0
	}
	s.rest = time.Now().Add(w.o.Timing.Return << min(s.lost, 4))
	s.lost++
	if errors.Is(err, errSilent) {
		s.close()
	}
	if first {
		w.o.Logger.Warn("warmpath: the look-aside server cannot be followed; what is known of the replicas stays",
			"server", s.address, "deployment", w.o.Deployment, "error", err)
	}
}

// pause waits before the next round, or until a server that cannot be reached now can.
func (w *Watch) pause(s *server, round int) {
	d := min(w.o.Timing.Retry<<min(round-1, 10), w.o.Timing.MaxRetry)
	ctx, cancel := context.WithTimeout(w.ctx, d/2+mathrand.N(d))
	defer cancel()
	if cc, err := s.dial(w.o.Dial); err == nil && cc.GetState() != connectivity.Ready && reachable(ctx, cc) {
		return
	}
	<-ctx.Done()
}

// awaitBetter waits until one of the servers that come first has rested and can be reached.
func (w *Watch) awaitBetter(ctx context.Context, first []*server) <-chan int {
	found := make(chan int, len(first))
	for i, s := range first {
		cc, err := s.dial(w.o.Dial)
		if err != nil {
			continue
		}
		rest := time.Until(s.rest)
		w.ended.Go(func() {
			if pause.For(ctx, rest) == nil && reachable(ctx, cc) {
				found <- i
			}
		})
	}
	return found
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
	errSilent = errors.New("it sends nothing any more")
	errBetter = errors.New("a server that comes before it can be reached again")
	errResync = errors.New("the whole index is wanted")
)
