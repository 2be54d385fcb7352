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

// discover asks an engine for its sources. Where they name no host that can be reached it is that of the replica.
func discover(ctx context.Context, connect connector, method, replicaAddress string) ([]Socket, error) {
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	request, reply := []byte{}, []byte{}
	if err := conn.Invoke(ctx, method, &request, &reply, callOptions()...); err != nil {
		return nil, fmt.Errorf("kvevents: GetKvEventSources: %w", err)
	}
	host, _, err := net.SplitHostPort(replicaAddress)
	if err != nil {
		host = replicaAddress
	}
	var sources []Socket
	ok := protofield.Each(reply, func(f protofield.Field) {
		if s, ok := readSource(f.Bytes, host); ok && f.Number == 1 && len(sources) < maxRanks {
			s.Engine = replicaAddress
			sources = append(sources, s)
		}
	})
	if !ok || len(sources) == 0 {
		return nil, errNoSource
	}
	return sources, nil
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
