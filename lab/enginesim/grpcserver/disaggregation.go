package grpcserver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/lab/enginesim/kvtransfer"
)

// Role is the part of requests that an engine serves.
type Role string

// Roles. An engine of role Both serves whole requests and, with NIXL and Mooncake, either leg.
const (
	Both    Role = "both"
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Roles are all of them, by name.
var Roles = []string{string(Both), string(Prefill), string(Decode)}

// Connector is how the legs of a request meet.
type Connector string

// Connectors.
const (
	// NIXL: the prefill engine answers with parameters, which the decode engine gets as they are.
	NIXL Connector = "nixl"
	// Mooncake: the client makes a transfer_id, and either leg may begin first.
	Mooncake Connector = "mooncake"
	// Rooms: the client makes a bootstrap room. Each leg waits for the other. As in SGLang, engines with the role Prefill
	// or Decode serve no whole requests.
	Rooms Connector = "rooms"
)

// Connectors are all of them, by name.
var Connectors = []string{string(NIXL), string(Mooncake), string(Rooms)}

// Disaggregation is what an engine needs to be one of prefill and decode engines.
type Disaggregation struct {
	// Role and Connector; empty means Both and NIXL.
	Role      Role
	Connector Connector
	// Listen is where decode engines ask for KV, host:port; empty means a free port on the host of the gRPC server.
	Listen string
	// EngineID is the engine's id in the connector; empty means one made of its address.
	EngineID string
	// Lease is how long computed KV waits for a decode engine, in engine time; 0 means 30 s.
	Lease time.Duration
	// Timeout is how long a leg waits for the other, in engine time; 0 means 30 s.
	Timeout time.Duration
	// Moment is called at every moment of every leg with its request's id, in the goroutine of the leg; nil = none.
	Moment func(m Moment, id string)
}

// How long a transfer takes, in engine time: 200 KB of KV a token at 25 GB/s.
const transferBase, transferPerToken = 2 * time.Millisecond, 8 * time.Microsecond

// Moment is a place in the life of a request that was split.
type Moment int

// Moments, in the order of a sequential request.
const (
	PrefillReceived  Moment = iota // the prefill engine has the request
	PrefillSubmitted               // its scheduler has it
	PrefillComputed                // the KV is computed
	PrefillAnswers                 // the answer is about to be sent
	DecodeReceived                 // the decode engine has the request
	DecodeAsks                     // it has asked the prefill engine for the KV
	DecodeTransfers                // the KV is on its way
	DecodeHasKV                    // the KV has come, the prefill engine does not know it yet
	DecodeFirst                    // the first token is about to be sent
	DecodeEnds                     // the last message is about to be sent
	Moments                        // how many there are
)

// defaults fills in what is not set. The engine listens at addr.
func (d Disaggregation) defaults(addr net.Addr) (Disaggregation, error) {
	d.Role, d.Connector = cmp.Or(d.Role, Both), cmp.Or(d.Connector, NIXL)
	d.Lease, d.Timeout = cmp.Or(d.Lease, 30*time.Second), cmp.Or(d.Timeout, 30*time.Second)
	d.EngineID = cmp.Or(d.EngineID, "engine-"+addr.String())
	switch {
	case !slices.Contains(Roles, string(d.Role)):
		return d, fmt.Errorf("grpcserver: role %q is not one of %s", d.Role, strings.Join(Roles, ", "))
	case !slices.Contains(Connectors, string(d.Connector)):
		return d, fmt.Errorf("grpcserver: connector %q is not one of %s", d.Connector, strings.Join(Connectors, ", "))
	}
	if d.Listen == "" {
		host, _, err := net.SplitHostPort(addr.String())
		if err != nil {
			return d, fmt.Errorf("grpcserver: Disaggregation.Listen is required: %w", err)
		}
		d.Listen = net.JoinHostPort(host, "0")
	}
	return d, nil
}

// kvSide is what an engine with a role has of its connector. The methods of nil are those of an engine without one.
type kvSide struct {
	Disaggregation
	srv    *Server
	source *kvtransfer.Source
}

// newKVSide starts the source of KV; nil if the engine has no role.
func newKVSide(s *Server) (*kvSide, error) {
	if s.cfg.Disaggregation == nil {
		return nil, nil
	}
	d, err := s.cfg.Disaggregation.defaults(s.addr)
	if err != nil {
		return nil, err
	}
	k := &kvSide{Disaggregation: d, srv: s}
	k.source, err = kvtransfer.Listen(context.Background(), d.Listen, s.wall(d.Lease), s.wall(d.Timeout))
	return k, err
}

// at reports a moment. It fails if the server was killed meanwhile: the call is cut then and not answered.
func (k *kvSide) at(ctx context.Context, m Moment, id string) error {
	if k.Moment == nil {
		return nil
	}
	k.Moment(m, id)
	if k.srv.killed.Err() == nil {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// whole checks that the engine serves a request that was not split.
func (k *kvSide) whole() error {
	if k != nil && k.Connector == Rooms && k.Role != Both {
		return status.Error(codes.InvalidArgument, "disaggregated request received without bootstrap room id")
	}
	return nil
}

// roomLeg is the leg of a request with a bootstrap room; nil for an engine without a role, which ignores it.
func (k *kvSide) roomLeg(host string, port, room int64) (*leg, error) {
	switch {
	case k == nil:
		return nil, nil
	case k.Connector != Rooms || k.Role == Both:
		return nil, status.Error(codes.InvalidArgument, "the engine is not in a disaggregation mode with bootstrap rooms")
	case room < 0 || host == "" || port < 1 || port > 65535:
		return nil, status.Errorf(codes.InvalidArgument, "bootstrap %q:%d, room %d is no place to meet", host, port, room)
	}
	addr := net.JoinHostPort(host, strconv.FormatInt(port, 10))
	if own := k.source.Addr().String(); k.Role == Prefill && addr != own {
		return nil, status.Errorf(codes.InvalidArgument, "the bootstrap server of this engine is %s, not %s", own, addr)
	}
	key := "room/" + strconv.FormatInt(room, 10)
	if k.Role == Prefill {
		return &leg{side: k, prefill: true, room: true, own: key}, nil
	}
	return &leg{side: k, room: true, wait: true, key: key, addr: addr}, nil
}

// wall is a duration of engine time on the clock of this machine.
func (s *Server) wall(d time.Duration) time.Duration {
	if s.cfg.Virtual || s.cfg.Speed == 0 {
		return d
	}
	return time.Duration(float64(d) / s.cfg.Speed)
}

// KVAddr is where decode engines ask for KV: the bootstrap address of a prefill engine. The engine has a role.
func (s *Server) KVAddr() string { return s.kv.source.Addr().String() }

// KVEngineID is the engine's id in its connector. The engine has a role.
func (s *Server) KVEngineID() string { return s.kv.EngineID }
