package lookaside

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"github.com/warmpath/warmpath/internal/pause"
)

// Rank returns the servers in the order in which a deployment prefers them: rendezvous hashing, so that all clients
// agree and a server that is lost sends its deployments to all others alike.
func Rank(servers []string, deployment string) []string {
	score := func(s string) uint64 { return xxh3.HashString(deployment + "\x00" + s) }
	ranked := slices.Clone(servers)
	slices.SortFunc(ranked, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(b), score(a)), cmp.Compare(a, b))
	})
	return slices.Compact(ranked)
}

// A server is one of the servers and the connection to it.
type server struct {
	address string
	opts    []grpc.DialOption
	conn    *grpc.ClientConn // connects when it is used
	rest    time.Time        // it is not returned to before
}

const (
	maxMessage = 16 << 20    // what a server may send at once, in bytes
	maxRetry   = time.Second // the longest wait between two rounds of all servers
)

// open makes the connection anew. One to a server that hangs would not show when the server is back.
func (s *server) open() error {
	conn, err := grpc.NewClient("dns:///"+s.address, append([]grpc.DialOption{
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	}, s.opts...)...)
	if err != nil {
		return err
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.conn = conn
	return nil
}

func (w *Watch) closeServers() {
	for _, s := range w.servers {
		_ = s.conn.Close() // its streams have ended
	}
}

// errSilent is the end of a stream on which nothing comes any more.
var errSilent = errors.New("it sends nothing any more")

// run follows one server after the other.
func (w *Watch) run() {
	defer w.closeServers()
	at, tries := 0, 0 // tries since the last message of a server
	for w.ctx.Err() == nil {
		next, answered, err := w.follow(at)
		if answered {
			tries = 0
		}
		switch {
		case w.ctx.Err() != nil:
			return
		case err == nil:
			at = next
			continue
		}
		w.lost(w.servers[at], err, tries == 0)
		tries++
		if at = (at + 1) % len(w.servers); tries%len(w.servers) > 0 {
			continue
		}
		if !w.view.known() {
			w.o.Failed(fmt.Errorf("warmpath: no look-aside server has named the replicas of %q: %w", w.o.Deployment, err))
		}
		d := min(w.o.Timing.Retry<<min(tries/len(w.servers)-1, 10), maxRetry)
		_ = pause.For(w.ctx, d/2+rand.N(d)) // the loop sees the end
	}
}

// lost notes that a server cannot be followed.
func (w *Watch) lost(s *server, err error, first bool) {
	s.rest = time.Now().Add(w.o.Timing.Return)
	if errors.Is(err, errSilent) {
		_ = s.open() // where that fails the connection stays
	}
	if first {
		w.o.Logger.Warn("warmpath: the look-aside server cannot be followed; what is known of the replicas stays",
			"server", s.address, "deployment", w.o.Deployment, "error", err)
	}
}

// better returns the first of the servers before one that has rested and can be reached; ok is false if there is none.
func (w *Watch) better(at int) (i int, ok bool) {
	for i, s := range w.servers[:at] {
		s.conn.Connect() // where that is not under way
		if time.Now().After(s.rest) && s.conn.GetState() == connectivity.Ready {
			return i, true
		}
	}
	return 0, false
}
