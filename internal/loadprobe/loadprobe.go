// Package loadprobe asks replicas for their load at the moment when a request is to be sent, for clients that have no
// look-aside server.
//
// # Rule
//
// Before a request reserves a replica, the client asks the one that the policy would choose now. With the answer the
// policy chooses again, until it chooses one that the request has asked, or five were asked. Then those
// that have not answered count as the mean of those that have: else a fleet with the same load everywhere would look
// idle where it was not asked. The request waits 20 ms at most. An answer counts for the requests that are asking when it
// comes, and for no later ones: figures of different moments are not compared.
//
// # Complexity
//
// At most five probes for a request of the fleet, so those of a replica do not grow with the number of clients. A
// client has one probe of a replica under way at most, which serves all requests that ask meanwhile.
//
// # Guarantees
//
// Connections are those that the client has. A replica that does not answer is asked less and less often, up to every
// ten seconds, and no request waits for one whose last answer was late. No proto name of another project is registered:
// fields are read by number.
//
// Source: Prequal (Wydrowski et al., NSDI 2024), in its synchronous mode. A client with few requests of its own has no
// pool of answers that are still true: of 64 clients with 7 requests/s in all (docs/routing-quality.md), TTFT is 0.9 of
// that without load where answers count for the next request, and 0.47 where the request waits for them.
package loadprobe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
)

const (
	// MaxWait bounds how long a request waits for answers.
	MaxWait = load.Step
	// Timeout bounds a probe. It is also how long a replica is left alone that did not answer once.
	Timeout = time.Second

	rounds     = 5 // three: +4 % TTFT, +5 % p99 in the simulator; two at random beside them: no gain
	maxBackoff = 10 * time.Second
)

// Before asks before a replica is reserved for a request. ask asks one, and returns false if that changes nothing, as
// when the request must not wait any longer. The caller calls the Router's Load.Asked when the request has its
// reservation, or gets none.
func Before(ctx context.Context, r *router.Router, q *policy.Request, ask func(*policy.Replica) bool) {
	r.Load.Ask()
	var asked [rounds]*policy.Replica
	for i := range asked {
		var held router.Reservation
		if r.Reserve(ctx, q, &held, router.How{Query: true}) != nil {
			return
		}
		held.Release()
		if asked[i] = held.Decision.Replica; slices.Contains(asked[:i], asked[i]) || !ask(asked[i]) {
			return
		}
	}
	r.Load.Assume("")
}

// A Source is how replicas are asked: the key of one of questions.
type Source string

// outOfBand is the source of replicas that report as in gRFC A51.
const outOfBand Source = "grpc:orca"

const orcaMethod = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"

// A question is a method, and how its answer is read.
type question struct {
	method string
	decode func(answer []byte) (load.Report, error)
}

var questions = map[Source]*question{
	"grpc:vllm":       {"/vllm.grpc.engine.VllmEngine/GetLoads", loadsWith(12)},
	"grpc:sglang":     {"/sglang.grpc.scheduler.SglangScheduler/GetLoads", loadsWith(17)},
	"grpc:tokenspeed": {"/tokenspeed.grpc.scheduler.TokenSpeedScheduler/GetLoads", loadsWith(14)},
	"grpc:openengine": {"/openengine.v1.Control/GetLoad", decodeLoad},
	outOfBand:         nil, // a stream
}

// Check refuses a source that is none.
func (s Source) Check() error {
	if _, ok := questions[s]; !ok {
		return fmt.Errorf("%q is none of %v", string(s), slices.Sorted(maps.Keys(questions)))
	}
	return nil
}

// Ask asks a replica.
func (s Source) Ask(ctx context.Context, conn grpc.ClientConnInterface) (load.Report, error) {
	if s == outOfBand {
		return core(ctx, conn)
	}
	return ask(ctx, conn, questions[s])
}

// A State is when a client asked a replica. The zero value means never. Safe for use by many goroutines.
type State struct {
	// mu guards the fields below. Nothing is locked or called under it.
	mu       sync.Mutex
	answered chan struct{} // closed when the probe under way ends; nil = none is
	begun    time.Time     // the last probe
	next     time.Time     // when it is asked again after a failure
	late     bool          // the last answer came after MaxWait
	failures int           // in a row
}

// Begin returns what a request waits for, nil = nothing, and whether the caller makes the probe, which it ends by End.
func (s *State) Begin(now time.Time) (answered <-chan struct{}, asks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if asks = s.answered == nil && !now.Before(s.next); asks {
		s.answered, s.begun = make(chan struct{}), now
	}
	if s.late || now.Sub(s.begun) > MaxWait {
		return nil, asks
	}
	return s.answered, asks
}

// ErrNotMade is for [State.End]: the client did not make the probe, which shows nothing of the replica.
var ErrNotMade = errors.New("too many calls to replicas are under way")

// End ends a probe, and reports whether it is the first that fails.
func (s *State) End(now time.Time, err error) (fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.answered)
	s.answered = nil
	if err == ErrNotMade {
		return false
	}
	if s.late = now.Sub(s.begun) > MaxWait; err == nil {
		s.failures = 0
		return false
	}
	s.failures++
	s.next = now.Add(min(Timeout<<min(s.failures-1, 10), maxBackoff))
	return s.failures == 1
}
