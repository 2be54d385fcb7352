package kvevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/protofield"
)

// maxRanks bounds the data-parallel ranks of a replica.
const maxRanks = 1024

var errNoSource = errors.New("kvevents: the engine names no ZeroMQ source")

// discover asks the replica for its ZeroMQ sockets until it names some, and follows them.
func (r *replica) discover(ctx context.Context, method string) {
	x := r.stream(method, 0)
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

// readSource reads one source; false if it is no ZeroMQ socket with messages in MessagePack.
func readSource(msg []byte, host string) (s Socket, ok bool) {
	f, _ := lastFields(msg) // the fields that it has show whether it is one
	s = Socket{
		Address: endpoint(f[2].Bytes, host), Topic: string(f[3].Bytes), Replay: reachable(string(f[4].Bytes), host),
		Rank: int(int32(f[5].Value)),
	}
	encoding := string(f[6].Bytes)
	return s, string(f[1].Bytes) == "zmq" && s.Address != "" && (encoding == "" || encoding == "msgpack") &&
		s.Rank >= 0 && s.Rank < maxRanks
}

// endpoint reads an endpoint: text, or a message of host, port and protocol.
func endpoint(b []byte, host string) string {
	if strings.HasPrefix(string(b), "tcp://") {
		return reachable(string(b), host)
	}
	f, ok := lastFields(b)
	port, protocol := f[2].Value, string(f[3].Bytes)
	if !ok || port == 0 || port > 65535 || protocol != "" && protocol != "tcp" {
		return ""
	}
	return reachable("tcp://"+net.JoinHostPort(string(f[1].Bytes), strconv.FormatUint(port, 10)), host)
}

// lastFields returns a message's fields by number, the last one of each; false if the message breaks off.
func lastFields(msg []byte) (map[protowire.Number]protofield.Field, bool) {
	all := make(map[protowire.Number]protofield.Field)
	ok := protofield.Each(msg, func(f protofield.Field) { all[f.Number] = f })
	return all, ok
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
