package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/pause"
)

// stage is what a scenario works on. Its goroutine uses it.
type stage struct {
	*Options
	ctx      context.Context
	load     *load
	fleet    *directory
	replicas []*replica
	spec     Spec
	meters   []*sdkmetric.ManualReader // one per channel
	memory   []Footprint               // of soak

	calm    time.Duration            // when the calm began
	harm    time.Duration            // when the first harm was done
	back    time.Duration            // when the last was over
	over    time.Duration            // when every channel was connected after that
	touched map[string]time.Duration // replicas, by the first harm to them
	steps   []time.Duration          // when each began; the last is the end of the one before
	harmed  [][]string               // replicas, in each step
}

// patience is how long a scenario waits for what must come.
const patience = 2 * time.Minute

// step begins a step of the scenario that harms these replicas.
func (s *stage) step(harmed ...*replica) {
	now := s.load.now()
	if s.harm == 0 {
		s.harm = now
	}
	s.steps = append(s.steps, now)
	s.harmed = append(s.harmed, nil)
	for _, r := range harmed {
		s.harmed[len(s.harmed)-1] = append(s.harmed[len(s.harmed)-1], r.id)
		if _, before := s.touched[r.id]; !before {
			s.touched[r.id] = now
		}
	}
}

// restored waits until every channel reaches these replicas, and lets every session be called once more.
func (s *stage) restored(rs ...*replica) error {
	s.back = s.load.now()
	if err := s.connected(rs...); err != nil {
		return err
	}
	s.over = s.load.now()
	return s.rounds(1)
}

func (s *stage) rounds(n int) error {
	ctx, cancel := context.WithTimeout(s.ctx, patience+s.Timeout)
	defer cancel()
	if err := s.load.rounds(ctx, n); err != nil {
		return fmt.Errorf("calls have no answer: %w", err)
	}
	return nil
}

// connected waits until every channel reaches each of the replicas: a call that is pinned there is answered.
func (s *stage) connected(rs ...*replica) error {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	var all sync.WaitGroup
	for _, cc := range s.load.channels {
		for _, r := range rs {
			all.Go(func() { knock(ctx, cc, r.id) })
		}
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("not every channel is connected to every replica: %w", err)
	}
	return nil
}

// knock asks until the replica answers, whatever the status.
func knock(ctx context.Context, cc *grpc.ClientConn, id string) {
	const every = 20 * time.Millisecond
	for {
		_, err := healthpb.NewHealthClient(cc).Check(client.WithPin(ctx, id), &healthpb.HealthCheckRequest{})
		if status.Code(err) != codes.Unavailable {
			return
		}
		if pause.For(ctx, every) != nil {
			return
		}
	}
}

// last for a while, which is how long a fault lasts.
func (s *stage) last(d time.Duration) error { return pause.For(s.ctx, d) }

// busy waits until a call is under way on the replica, or every session has been called: it may have none.
func (s *stage) busy(r *replica) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	round := make(chan error, 1)
	go func() { round <- s.load.rounds(ctx, 1) }()
	for r.proxy.Streams() == 0 {
		select {
		case err := <-round:
			return err
		default:
		}
		if err := pause.For(s.ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// until polls a condition that others bring about.
func (s *stage) until(what string, ok func() bool) error {
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			return errors.New(what + ": it did not come to pass")
		}
		if err := pause.For(s.ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// log reports the step of the scenario.
func (s *stage) log(format string, args ...any) {
	if s.Log != nil {
		s.Log(fmt.Sprintf(format, args...))
	}
}
