package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// ErrServed is the error of a second Serve.
var ErrServed = errors.New("replica: Serve was called before")

// ErrDrainTimeout is wrapped by the error of a Serve that had to cut calls off.
var ErrDrainTimeout = errors.New("replica: calls were cut off after DrainTimeout")

// linger is the time between two looks at the calls under way. The connections are cut where both find none: the ends
// of the last calls are still being sent, and watches (health, events) never end.
const linger = time.Second / 2

// Serve serves s, made with [Replica.ServerOptions], on l, and keeps the replica registered until ctx ends. Then it
// drains, for DrainNotice and DrainTimeout at most, and stops s. It returns nil when every call could end,
// [ErrDrainTimeout] when not, and the error of s where that could not serve. It is called once; s and l are stopped
// and closed when it returns.
func (r *Replica) Serve(ctx context.Context, s *grpc.Server, l net.Listener) error {
	defer l.Close()
	defer s.Stop()
	if !r.served.CompareAndSwap(false, true) {
		return ErrServed
	}
	if err := r.reachedAt(l.Addr()); err != nil {
		return err
	}
	r.offerLoad(s)
	r.offerHealth(s)
	leave, err := r.register()
	if err != nil {
		return err
	}
	defer leave()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	r.drain()
	select {
	case <-r.after(r.cfg.DrainNotice):
	case err := <-ended: // s was stopped from outside
		return err
	}
	err = r.finish(s)
	<-ended
	return err
}

// offerHealth makes every service of s healthy, and health one of them.
func (r *Replica) offerHealth(s *grpc.Server) {
	services := s.GetServiceInfo()
	for name := range services {
		r.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	if _, there := services[healthpb.Health_ServiceDesc.ServiceName]; !there {
		healthpb.RegisterHealthServer(s, r.health)
	}
}

// finish takes no new calls and waits for those under way.
func (r *Replica) finish(s *grpc.Server) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.GracefulStop()
	}()
	deadline := r.after(r.cfg.DrainTimeout)
	for looks := 0; looks < 2; {
		select {
		case <-stopped:
			return nil
		case <-r.after(linger):
			if looks++; r.Ongoing() > 0 {
				looks = 0
			}
		case <-deadline:
			n := r.Ongoing()
			s.Stop() // GracefulStop may still wait for handlers that do not heed their context
			if n > 0 {
				return fmt.Errorf("%w: %d of them, after %v", ErrDrainTimeout, n, r.cfg.DrainTimeout)
			}
			return nil
		}
	}
	s.Stop()
	return nil
}
