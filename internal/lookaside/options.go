package lookaside

import (
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/fleet"
)

// Options are what to watch, and how. Servers, Dial and the functions are needed.
type Options struct {
	Servers    []string // host:port
	Deployment string   // empty = the server's only one
	// Dial is how to reach a server: credentials at least.
	Dial   []grpc.DialOption
	Logger *slog.Logger // nil = slog.Default()
	// Known is what was known before, by another Watch of the same target; nil = nothing.
	Known *State
	// Changed is called with a new State, by one goroutine at a time, and with Known first, from within Start.
	Changed func(*Watch, State)
	// Failed is called with the reason why nothing is known yet, each time that all servers were tried.
	Failed func(error)
	Timing Timing
}

// A State is what a channel has to know to make calls. It is not written again.
type State struct {
	Replicas []Replica
	// ServiceConfig is a gRPC service config in JSON; empty = the server has sent none.
	ServiceConfig string
}

// A Replica is one replica as a server describes it.
type Replica struct {
	fleet.Replica
	Stats map[string]float64 // that it reports of itself

	kvTokens int
}

// Timing holds the times that a Watch goes by; 0 = the default.
type Timing struct {
	// Silence is how long a server may send nothing before it counts as lost: 5 s. It sends something every second.
	Silence time.Duration
	// Fade is the silence after which peer load is halved at each Step: 2 s and 250 ms.
	Fade, Step time.Duration
	// Grace is how long replicas stay that a new server does not name: 30 s.
	Grace time.Duration
	// Retry and MaxRetry bound the wait between two rounds of all servers: 200 ms and 2 s.
	Retry, MaxRetry time.Duration
	// Return is how long a better server is left alone after it was lost: 10 s, and twice as long each time that it is
	// lost again, up to 16 times.
	Return time.Duration
	// Interval is the time between reports until the server sets it: 100 ms.
	Interval time.Duration
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&t.Silence, 5*time.Second)
	set(&t.Fade, 2*time.Second)
	set(&t.Step, 250*time.Millisecond)
	set(&t.Grace, 30*time.Second)
	set(&t.Retry, 200*time.Millisecond)
	set(&t.MaxRetry, 2*time.Second)
	set(&t.Return, 10*time.Second)
	set(&t.Interval, 100*time.Millisecond)
	return t
}
