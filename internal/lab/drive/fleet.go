package drive

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/resolver"
)

// Fleet is simulated engines on loopback sockets, named r0, r1 and so on.
type Fleet struct{ servers []*grpcserver.Server }

// StartFleet starts n engines alike. Where the config has a log of KV events, each has one of its own.
func StartFleet(ctx context.Context, n int, c grpcserver.Config) (*Fleet, error) {
	f := &Fleet{}
	for range n {
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			f.Kill()
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		if c.KVEvents != nil {
			c.KVEvents = kvpublish.NewLog(0)
		}
		s, err := grpcserver.Start(lis, c)
		if err != nil {
			f.Kill()
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		f.servers = append(f.servers, s)
	}
	return f, nil
}

// Target is the dial target of the fleet.
func (f *Fleet) Target() string {
	entries := make([]string, len(f.servers))
	for i, s := range f.servers {
		entries[i] = "r" + strconv.Itoa(i) + "=" + s.Addr().String()
	}
	return resolver.Scheme + ":///" + strings.Join(entries, ",")
}

// Kill ends the engines and the calls on them.
func (f *Fleet) Kill() {
	for _, s := range f.servers {
		s.Kill()
	}
}
