package kvevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/protofield"
)

var errNoSource = errors.New("kvevents: the engine names no ZeroMQ source")

// A socket is the ZeroMQ socket on which one rank of an engine publishes: the addresses are the rank's own.
type socket struct {
	eventsource.Source
	rank int
}

// followReplica follows the sockets of a replica until the context ends.
func followReplica(ctx context.Context, r *kvevents.Replica, src eventsource.Source) {
	if len(src.Discover) > 0 {
		discover(ctx, r, src.Discover)
		return
	}
	all := make([]socket, src.Ranks)
	for rank := range all {
		all[rank] = socket{src, rank}
		all[rank].Address, all[rank].Replay = src.Rank(rank)
	}
	followSockets(ctx, r, all)
}

func followSockets(ctx context.Context, r *kvevents.Replica, all []socket) {
	var wg sync.WaitGroup
	for _, at := range all {
		s := r.NewStream("tcp://"+at.Address, at.rank)
		wg.Go(func() { follow(ctx, s, at) })
	}
	wg.Wait()
}

// discover asks the replica for its ZeroMQ sockets until it names some, and follows them.
func discover(ctx context.Context, r *kvevents.Replica, methods []string) {
	x := r.NewStream(methods[0], 0)
	for b := new(kvevents.Backoff); ; {
		all, err := sources(ctx, r, methods)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			x.Remove() // it carries no events: a socket that is lost is not made up for by it
			followSockets(ctx, r, all)
			return
		}
		x.Failed(err)
		b.Wait(ctx)
	}
}

// sources asks the replica for its ZeroMQ sockets, by the first method that it has. If a socket names no host that can be
// reached, its host is the replica's.
func sources(ctx context.Context, r *kvevents.Replica, methods []string) (all []socket, err error) {
	conn, err := r.Connect(ctx, r.Attrs.ID)
	if err != nil {
		return nil, err
	}
	var request, reply []byte
	for i, method := range methods {
		err = conn.Invoke(ctx, method, &request, &reply, kvevents.CallOptions()...)
		if status.Code(err) != codes.Unimplemented || i == len(methods)-1 {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("kvevents: GetKvEventSources: %w", err)
	}
	host, _, err := net.SplitHostPort(r.Attrs.Address)
	if err != nil {
		host = r.Attrs.Address
	}
	ok := protofield.Each(reply, func(f protofield.Field) {
		if s, ok := readSource(f.Bytes, host); ok && f.Number == 1 && len(all) < kvevents.MaxRanks {
			all = append(all, s)
		}
	})
	if !ok || len(all) == 0 {
		return nil, errNoSource
	}
	return all, nil
}

// readSource reads one source; false if it is no ZeroMQ socket with messages in MessagePack.
func readSource(msg []byte, host string) (s socket, ok bool) {
	f, _ := protofield.Last(msg) // the fields that it has show whether it is one
	s.Address, s.Topic = endpoint(f[2].Bytes, host), string(f[3].Bytes)
	s.Replay, s.rank = reachable(string(f[4].Bytes), host), int(int32(f[5].Value))
	encoding := string(f[6].Bytes)
	return s, string(f[1].Bytes) == "zmq" && s.Address != "" && (encoding == "" || encoding == "msgpack") &&
		s.rank >= 0 && s.rank < kvevents.MaxRanks
}

// endpoint reads an endpoint: text, or a message of host, port and protocol.
func endpoint(b []byte, host string) string {
	if strings.HasPrefix(string(b), "tcp://") {
		return reachable(string(b), host)
	}
	f, ok := protofield.Last(b)
	port, protocol := f[2].Value, string(f[3].Bytes)
	if !ok || port == 0 || port > 65535 || protocol != "" && protocol != "tcp" {
		return ""
	}
	return reachable("tcp://"+net.JoinHostPort(string(f[1].Bytes), strconv.FormatUint(port, 10)), host)
}

// reachable is host:port of a tcp:// endpoint, with the replica's host in place of a wildcard; "" if it is none.
func reachable(endpoint, host string) string {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	at, port, err := net.SplitHostPort(rest)
	if !ok || err != nil {
		return ""
	}
	switch at {
	case "", "*", "0.0.0.0", "::":
		at = host
	}
	return net.JoinHostPort(at, port)
}
