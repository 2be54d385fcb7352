package kvevents

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
)

// MaxMessage is the largest message that is taken, in bytes. A larger one ends the connection.
const MaxMessage = 4 << 20

// Socket is the ZeroMQ socket on which one rank of an engine publishes.
type Socket struct {
	Address string // host:port
	Listen  bool   // the engine connects to it
	Replay  string // host:port of the replay socket, or empty
	Topic   string // what topics must begin with
	Rank    int
	Engine  string // address of the replica
}

// Transport follows sockets that are no gRPC streams. It registers itself when its package is imported.
type Transport struct {
	// Follow follows a socket until the context ends.
	Follow func(ctx context.Context, s *Stream, at Socket)
	// Decode reads a message into a batch.
	Decode func(b *Batch, payload []byte)
}

var zeroMQ Transport

// RegisterZeroMQ makes ZeroMQ sockets usable. It is called while packages are initialized.
func RegisterZeroMQ(t Transport) { zeroMQ = t }

// ErrNotLinked is the error of a source whose transport is not linked into the program.
var ErrNotLinked = errors.New(`ZeroMQ is not linked: import _ "github.com/warmpath/warmpath/balancer/kvevents"`)

// ParseSource reads where a replica's events come from. The error begins with the field at fault.
func ParseSource(a policy.Attributes) (fleet.EventSource, error) {
	src, err := fleet.ParseEventSource(a)
	if err == nil && src.Subscribe == "" && zeroMQ.Follow == nil {
		return src, fmt.Errorf("kv_events: %q: %w", a.KVEvents, ErrNotLinked)
	}
	return src, err
}
