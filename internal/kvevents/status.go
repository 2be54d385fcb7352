package kvevents

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/eventsource"
)

// Status is how one stream of events is doing. Counts are since it began.
type Status struct {
	Replica string // id
	Rank    int    // data-parallel rank, where the stream has one

	Connected   bool
	Connections int64  // how often the connection was made
	Problem     string // why it is not connected, or cannot be asked; "" if all is well

	Messages int64  // applied
	Next     uint64 // sequence number expected next; 0 before the first
	Queued   int    // received and not applied yet
	// Lag is how long the message applied last had waited.
	Lag time.Duration

	Events      int64 // read
	Blocks      int   // held now, as far as they are known
	BlockTokens int   // the engine's block size; 0 before the first block

	Gaps         int64 // holes in the sequence
	Replays      int64 // replays asked for
	ReplayErrors int64 // replays that failed
	Restarts     int64 // of the engine
	Clears       int64 // times that all of it was forgotten since something was lost or restarted
	Orphaned     int64 // stores whose parent was never known
	Forgotten    int64 // blocks forgotten to stay in the budget

	// Unreadable counts what could not be read or is not for the index, by kind: frames, batch, empty, event, kind,
	// tokens, medium, adapter, content, group, block_size.
	Unreadable Unreadable

	model string
}

// statuses returns the status of every stream.
func (r *Replica) statuses() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Status, len(r.streams))
	for i, s := range r.streams {
		all[i] = s.status
	}
	return all
}

// MaxRanks bounds the data-parallel ranks of a replica.
const MaxRanks = 1024

// MaxMessage is the largest message that is taken, in bytes. A larger one ends the connection.
const MaxMessage = 4 << 20

// Decoder reads a message of a socket, until the context ends.
type Decoder func(ctx context.Context, payload []byte) Batch

// followZeroMQ follows the ZeroMQ sockets of a replica until the context ends; nil where none can.
var followZeroMQ func(ctx context.Context, r *Replica, src eventsource.Source)

// RegisterZeroMQ makes ZeroMQ sockets usable. It is called while packages are initialized.
func RegisterZeroMQ(follow func(ctx context.Context, r *Replica, src eventsource.Source)) {
	followZeroMQ = follow
}

// ErrNotLinked is the error of a source whose transport is not linked into the program.
var ErrNotLinked = errors.New(`ZeroMQ is not linked: import _ "github.com/warmpath/warmpath/balancer/kvevents"`)

// ParseSource reads where a replica's events come from. The error begins with the field at fault.
func ParseSource(a policy.Attributes) (eventsource.Source, error) {
	src, err := eventsource.Parse(a)
	if err == nil && src.Subscribe == "" && followZeroMQ == nil {
		return src, fmt.Errorf("kv_events: %q: %w", a.KVEvents, ErrNotLinked)
	}
	return src, err
}
