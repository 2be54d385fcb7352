package chaos

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/lab/drive"
)

// stage is what a scenario works on. Its goroutine uses it.
type stage struct {
	*Options
	ctx       context.Context
	load      *load
	replicas  []*replica
	spec      Spec
	resolvers []*manual.Resolver        // one per channel
	meters    []*sdkmetric.ManualReader // likewise
	memory    []Footprint               // of soak

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

// rounds waits until n whole rounds that begin from now on have been answered.
func (s *stage) rounds(n int) error {
	return s.until("calls have an answer", patience+s.Timeout, s.load.rounds(n))
}

// connected waits until every channel reaches each of the replicas: a call that is pinned there is answered.
func (s *stage) connected(rs ...*replica) error {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	ids := make([]string, len(rs))
	for i, r := range rs {
		ids[i] = r.id
	}
	if err := drive.Reach(ctx, s.load.channels, ids); err != nil {
		return fmt.Errorf("not every channel is connected to every replica: %w", err)
	}
	return nil
}

// disconnected waits until no channel is connected to replicas that are no longer in the fleet: calls under way there
// end by themselves before their connections do.
func (s *stage) disconnected(rs ...*replica) error {
	return s.until("no client is connected to a replica that is gone", patience, func() bool {
		return !slices.ContainsFunc(rs, func(r *replica) bool { return r.proxy.Conns() > 0 })
	})
}

// comeback lets every session be called while the replica is away, and again when it is back as another instance.
func (s *stage) comeback(r *replica) error {
	if err := s.rounds(1); err != nil {
		return err
	}
	if err := r.start(s.ctx); err != nil {
		return err
	}
	s.setFleet(s.replicas)
	return s.restored(r)
}

// setFleet gives all channels these replicas.
func (s *stage) setFleet(rs []*replica) {
	var state resolver.State
	for _, r := range rs {
		state.Endpoints = append(state.Endpoints, r.endpoint())
	}
	for _, channel := range s.resolvers {
		channel.UpdateState(state)
	}
}

// busy waits until a call is under way on the replica, or every session has been called: it may have none.
func (s *stage) busy(r *replica) error {
	answered := s.load.rounds(1)
	return s.until("calls have an answer", patience+s.Timeout, func() bool {
		return s.gauge(r.id, "warmpath.replica.ongoing") > 0 || answered()
	})
}

// until polls a condition that others bring about.
func (s *stage) until(what string, within time.Duration, ok func() bool) error {
	for end := time.Now().Add(within); !ok(); {
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

// everywhere is the name for all replicas.
const everywhere = ""

// gauge adds up what the channels measure under these names, of one replica or everywhere.
func (s *stage) gauge(replica string, names ...string) (n int) {
	for _, reader := range s.meters {
		var rm metricdata.ResourceMetrics
		if err := reader.Collect(s.ctx, &rm); err != nil {
			return -1
		}
		for _, scope := range rm.ScopeMetrics {
			for _, m := range scope.Metrics {
				if g, ok := m.Data.(metricdata.Gauge[int64]); ok && slices.Contains(names, m.Name) {
					n += sum(g, replica)
				}
			}
		}
	}
	return n
}

func sum(g metricdata.Gauge[int64], replica string) (n int) {
	for _, p := range g.DataPoints {
		if id, _ := p.Attributes.Value("warmpath.replica"); replica == everywhere || id.AsString() == replica {
			n += int(p.Value)
		}
	}
	return n
}

// reservations are those of all channels, and the calls in their queues.
func (s *stage) reservations() int {
	return s.gauge(everywhere, "warmpath.replica.ongoing", "warmpath.queue.length")
}

// leaked counts the reservations that stay after all calls have ended. gRPC reports the end of an attempt on
// a goroutine of its own, so the last may be on their way.
func (s *stage) leaked() (n int) {
	for range 500 {
		if n = s.reservations(); n == 0 || pause.For(s.ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	return n
}

// Footprint is what a run holds in memory at one moment: load, channels, proxies and engines of this process together.
type Footprint struct {
	// Goroutines is how many there are, Heap the bytes that a garbage collection leaves.
	Goroutines int    `json:"goroutines"`
	Heap       uint64 `json:"heap_bytes"`
	// Reservations are those of all channels; calls are under way then.
	Reservations int `json:"reservations"`
}

// footprint is the least of some measurements: calls come and go meanwhile.
func (s *stage) footprint() (least Footprint, err error) {
	const times, apart = 20, 25 * time.Millisecond
	for i := range times {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		f := Footprint{Goroutines: runtime.NumGoroutine(), Heap: m.HeapAlloc - s.load.size(), Reservations: s.reservations()}
		if i == 0 {
			least = f
		}
		least = Footprint{min(least.Goroutines, f.Goroutines), min(least.Heap, f.Heap),
			min(least.Reservations, f.Reservations)}
		if err := pause.For(s.ctx, apart); err != nil {
			return least, err
		}
	}
	return least, nil
}
