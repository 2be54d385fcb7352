package kvevents

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Options configure a [Manager]. Only Sink is needed.
type Options struct {
	// Sink takes what changed, as Router.CacheChanged does. It is called by one goroutine at a time for each replica
	// and must not keep the slices, nor call the Manager.
	Sink func([]policy.CacheChange)
	// Connect returns a connection to the replica with this id, or waits for one. It is called where kv_events is
	// grpc: or sources:, from a goroutine per replica; nil means that these cannot be used.
	Connect func(ctx context.Context, id string) (grpc.ClientConnInterface, error)
	// MaxBytes bounds what is kept of one data-parallel rank of one replica to understand its next events; 0 means
	// 16 MiB, about 200,000 blocks. Beyond it the blocks touched longest ago are forgotten, in the index too.
	MaxBytes int
	// Coarse passes on superblocks as well, in changes of their own: their hash is that of the block that ends there.
	// Engines drop the ends of prompts first; where one drops a block before, a coarse change may come late.
	Coarse bool
	// Quiet is how long a ZeroMQ source may be silent before it is asked whether it has published, and less and less
	// often then; 0 means a second.
	Quiet time.Duration
	// Logger gets every loss that cleared a replica, and sources that cannot be followed; nil means none.
	Logger *slog.Logger
}

const (
	defaultBytes = 16 << 20
	defaultQuiet = time.Second
)

func (o Options) withDefaults() Options {
	o.MaxBytes = cmp.Or(o.MaxBytes, defaultBytes)
	o.Quiet = cmp.Or(o.Quiet, defaultQuiet)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}
