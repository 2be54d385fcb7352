package lookaside

import (
	"context"
	"math/rand/v2"
	"time"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

type update = warmpathv1.WatchReplicasResponse

// watchStream is one watch of one server: it receives updates and sends reports.
type watchStream struct {
	view     *view
	stream   warmpathv1.RoutingService_WatchReplicasClient
	interval time.Duration // between two updates of the load
	sent     time.Time     // the last report
}

// follow watches a server until that ends, and returns why; nil where another watch of the server next is to follow.
func (w *Watch) follow(at int) (next int, answered bool, err error) {
	ctx, cancel := context.WithCancelCause(w.ctx)
	defer cancel(nil)
	// A server that hangs does not read either: whatever blocks ends with ctx.
	silence := time.AfterFunc(w.o.Timing.Silence, func() { cancel(errSilent) })
	defer silence.Stop()
	cc := w.servers[at].conn
	s := &watchStream{view: w.view, interval: firstInterval}
	if s.stream, err = warmpathv1.NewRoutingServiceClient(cc).WatchReplicas(ctx); err != nil {
		cancel(err) // the cause, unless there is one
		return at, false, context.Cause(ctx)
	}
	// Where this fails, what is received shows why.
	_ = s.stream.Send(&warmpathv1.WatchReplicasRequest{Start: w.view.start()})
	messages := make(chan *update)
	w.ended.Go(func() { cancel(s.receive(ctx, messages)) })
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case m := <-messages:
			silence.Reset(w.o.Timing.Silence)
			w.view.take(m, !answered)
			if !answered {
				w.o.Logger.Info("warmpath: following a look-aside server",
					"server", w.servers[at].address, "deployment", w.o.Deployment)
				s.report()
				timer.Reset(s.interval)
				w.ended.Go(func() { w.central.serve(ctx, cc, w.o.Timing.Retry) })
			}
			answered = true
			if u := m.GetLoad(); u != nil {
				timer.Reset(s.schedule(u))
			}
		case <-timer.C:
			s.report()
			timer.Reset(min(s.interval, renewAfter))
			if i, ok := w.better(at); ok {
				return i, answered, nil
			}
		case <-w.view.resync:
			return at, answered, nil
		case <-ctx.Done():
			return at, answered, context.Cause(ctx)
		}
	}
}

// receive passes the server's messages on, until ctx or the stream ends. It returns why.
func (s *watchStream) receive(ctx context.Context, to chan<- *update) error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const (
	// firstInterval is the time between reports until the server sets it.
	firstInterval = 100 * time.Millisecond
	// renewAfter is the time after which load is reported although it has not changed.
	renewAfter = 900 * time.Millisecond
)

// schedule is the time from an update to the next report: in the last tenth of the interval, so that the next update
// contains the newest reservations. The end of it is left for the way. Where no update comes, the reports keep their
// place in the interval.
func (s *watchStream) schedule(u *warmpathv1.LoadUpdate) time.Duration {
	next := min(time.Duration(u.GetNextMs())*time.Millisecond, time.Minute)
	// The first update comes in the midst of an interval.
	s.interval = max(next, s.interval/2, time.Millisecond)
	return min(max(next-s.interval/10, 0)+rand.N(s.interval/10)*8/10, renewAfter)
}

// report sends the server what has changed. An error shows in what is received.
func (s *watchStream) report() {
	now := time.Now()
	renew := now.Sub(s.sent) >= renewAfter
	m := s.view.report(renew)
	if m.Reservations != nil || renew {
		s.sent = now
	}
	if m.Reservations != nil || m.Routes != nil || m.Outcomes != nil {
		_ = s.stream.Send(m)
	}
}
