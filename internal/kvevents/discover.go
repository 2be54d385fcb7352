package kvevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/protofield"
)

// maxRanks bounds the data-parallel ranks of a replica.
const maxRanks = 1024

var errNoSource = errors.New("kvevents: the engine names no ZeroMQ source")

// discover asks the replica for its ZeroMQ sockets until it names some, and follows them.
func (r *replica) discover(ctx context.Context, method string) {
	x := r.stream(method, 0, nil)
	for b := new(Backoff); ; {
		all, err := r.sources(ctx, method)
		if ctx.Err() != nil {
			return
		}
		x.Failed(err)
		if err == nil {
			r.sockets(ctx, all)
			return
		}
		b.Wait(ctx)
	}
}

// sources asks the replica for its ZeroMQ sockets. Where they name no host that can be reached it is the replica's.
func (r *replica) sources(ctx context.Context, method string) (all []Socket, err error) {
	conn, err := r.Connect(ctx, r.attrs.ID)
	if err != nil {
		return nil, err
	}
	var request, reply []byte
	if err := conn.Invoke(ctx, method, &request, &reply, callOptions()...); err != nil {
		return nil, fmt.Errorf("kvevents: GetKvEventSources: %w", err)
	}
	host, _, err := net.SplitHostPort(r.attrs.Address)
	if err != nil {
		host = r.attrs.Address
	}
	ok := protofield.Each(reply, func(f protofield.Field) {
		if s, ok := readSource(f.Bytes, host); ok && f.Number == 1 && len(all) < maxRanks {
			s.Engine = r.attrs.Address
			all = append(all, s)
		}
	})
	if !ok || len(all) == 0 {
		return nil, errNoSource
	}
	return all, nil
}

func readSource(msg []byte, host string) (s Socket, ok bool) {
	transport, encoding := "", ""
	_ = protofield.Each(msg, func(f protofield.Field) { // the fields that it has show whether it is one
		switch f.Number {
		case 1:
			transport = string(f.Bytes)
		case 2:
			s.Address = endpoint(f.Bytes, host)
		case 3:
			s.Topic = string(f.Bytes)
		case 4:
			s.Replay = reachable(string(f.Bytes), host)
		case 5:
			s.Rank = int(int32(f.Value))
		case 6:
			encoding = string(f.Bytes)
		}
	})
	ok = transport == "zmq" && s.Address != "" && (encoding == "" || encoding == "msgpack") &&
		s.Rank >= 0 && s.Rank < maxRanks
	return s, ok
}

// endpoint reads an endpoint: text, or a message of host, port and protocol.
func endpoint(b []byte, host string) string {
	if strings.HasPrefix(string(b), "tcp://") {
		return reachable(string(b), host)
	}
	var at, protocol string
	var port uint64
	ok := protofield.Each(b, func(f protofield.Field) {
		switch f.Number {
		case 1:
			at = string(f.Bytes)
		case 2:
			port = f.Value
		case 3:
			protocol = string(f.Bytes)
		}
	})
	if !ok || port == 0 || port > 65535 || protocol != "" && protocol != "tcp" {
		return ""
	}
	return reachable("tcp://"+net.JoinHostPort(at, strconv.FormatUint(port, 10)), host)
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
