package lookaside

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
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

// A server is one of the servers and the connection to it. It belongs to the goroutine that follows servers.
type server struct {
	address string
	conn    *grpc.ClientConn // nil before it is needed
	rest    time.Time        // it is not returned to before
	lost    int              // how often it was lost one time after the other
}

// maxMessage bounds what a server may send at once.
const maxMessage = 16 << 20

// dial returns the connection, which opens itself when it is used.
func (s *server) dial(opts []grpc.DialOption) (*grpc.ClientConn, error) {
	if s.conn != nil {
		return s.conn, nil
	}
	all := append([]grpc.DialOption{
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	}, opts...)
	var err error
	s.conn, err = grpc.NewClient("dns:///"+s.address, all...)
	return s.conn, err
}

// close closes the connection. One to a server that hangs has to be made anew to show when the server is back.
func (s *server) close() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}

// reachable waits until there is a connection, as long as the context lasts.
func reachable(ctx context.Context, cc *grpc.ClientConn) bool {
	for {
		state := cc.GetState()
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.Idle:
			cc.Connect()
		case connectivity.Shutdown:
			return false
		}
		if !cc.WaitForStateChange(ctx, state) {
			return false
		}
	}
}
