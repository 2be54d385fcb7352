package lookaside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/warmpath/warmpath/internal/pause"
)

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
	tries, at := 0, 0 // since anything was heard
	for w.ctx.Err() == nil {
		began := time.Now()
		heard, better, err := w.follow(servers, at)
		if heard {
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
			w.failed(err)
			w.pause(servers[0], tries/len(servers))
		}
	}
}

// lost notes that a server cannot be followed.
func (w *Watch) lost(s *server, began time.Time, err error, news bool) {
	if time.Since(began) > w.o.Timing.Return {
		s.lost = 0
	}
	s.rest = time.Now().Add(w.o.Timing.Return << min(s.lost, 4))
	s.lost++
	if errors.Is(err, errSilent) {
		s.close()
	}
	if news {
		w.o.Logger.Warn("warmpath: the look-aside server cannot be followed; what is known of the replicas stays",
			"server", s.address, "deployment", w.o.Deployment, "error", err)
	}
}

// failed tells the channel that nothing is known, if that is so.
func (w *Watch) failed(err error) {
	w.mu.Lock()
	known := w.members.known
	w.mu.Unlock()
	if !known {
		w.o.Failed(fmt.Errorf("warmpath: no look-aside server has told of the replicas of %q: %w", w.o.Deployment, err))
	}
}

// pause waits before the next round, or until a server that cannot be reached now can.
func (w *Watch) pause(s *server, round int) {
	d := min(w.o.Timing.Retry<<min(round-1, 10), w.o.Timing.MaxRetry)
	ctx, cancel := context.WithTimeout(w.ctx, d/2+rand.N(d))
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
