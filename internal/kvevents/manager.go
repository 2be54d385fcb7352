package kvevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/pause"
)

// replaysAtOnce bounds the replays under way in one Manager.
const replaysAtOnce = 8

// Manager follows the KV events of a fleet: of every replica that has kv_events. Safe for use by many goroutines.
type Manager struct {
	options Options
	replays chan struct{} // has those under way
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	// mu guards the replicas, and that the context ends. The locks of the replicas' statuses are taken under it.
	mu       sync.Mutex
	replicas map[string]*Replica // the last one of each id; one that leaves stays until it has ended
}

// NewManager returns a Manager that follows no replica yet.
func NewManager(o Options) *Manager {
	m := &Manager{
		options: o.withDefaults(), replays: make(chan struct{}, replaysAtOnce), replicas: map[string]*Replica{},
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// SetFleet begins to follow replicas that are new or were restarted, and ends with those that are gone or whose source
// changed: what came from them is cleared. It does not wait.
func (m *Manager) SetFleet(fleet []policy.Attributes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return
	}
	wanted := make(map[string]policy.Attributes, len(fleet))
	for _, a := range fleet {
		if a.KVEvents != "" {
			wanted[a.ID] = a
		}
	}
	for id, r := range m.replicas {
		if a, ok := wanted[id]; ok && !r.leaves && r.follows(a) {
			r.instance = a.Instance
			delete(wanted, id)
		} else {
			r.leaves = true
			r.cancel()
		}
	}
	for id, a := range wanted {
		m.replicas[id] = m.start(a, m.replicas[id])
	}
}

// follows reports whether these attributes change nothing for the replica. The Router forgets the cache of one that
// was restarted: it must get it again.
func (r *Replica) follows(a policy.Attributes) bool {
	b := r.Attrs
	restarted := r.instance != a.Instance && r.instance != "" && a.Instance != ""
	return !restarted && b.KVEvents == a.KVEvents && b.KVEventsReplay == a.KVEventsReplay && b.Ranks == a.Ranks &&
		b.Address == a.Address && model(b) == model(a)
}

// model is the model whose name the replica's blocks are hashed with: the first that it serves.
func model(a policy.Attributes) string {
	if len(a.Models) == 0 {
		return ""
	}
	return a.Models[0]
}

// start follows a replica, once the one with its id before it has ended.
func (m *Manager) start(a policy.Attributes, before *Replica) *Replica {
	r := &Replica{
		Options: m.options, replays: m.replays, Attrs: a, instance: a.Instance, done: make(chan struct{}),
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(m.ctx)
	m.running.Go(func() {
		defer m.ended(r)
		if before != nil {
			<-before.done
		}
		r.follow(ctx)
		for _, x := range r.streams {
			x.clear()
		}
	})
	return r
}

func (m *Manager) ended(r *Replica) {
	r.cancel()
	close(r.done)
	m.mu.Lock()
	defer m.mu.Unlock()
	if id := r.Attrs.ID; r.leaves && m.replicas[id] == r {
		delete(m.replicas, id)
	}
}

// follow follows until the context ends.
func (r *Replica) follow(ctx context.Context) {
	src, err := ParseSource(r.Attrs)
	switch {
	case err != nil:
		r.Logger.Error("warmpath: a replica's KV events are not followed", "replica", r.Attrs.ID, "error", err)
		r.NewStream(r.Attrs.KVEvents, 0).Update(func(st *Status) { st.Problem = err.Error() })
		<-ctx.Done()
	case src.Subscribe != "":
		newWatcher(r, src.Subscribe).run(ctx)
	default:
		followZeroMQ(ctx, r, src)
	}
}

// Status returns the status of every stream, in the order of the replicas' ids. That replicas of one model have blocks
// of different sizes is a problem of the later ones: equal prompts have different hashes there.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Status
	for _, r := range m.replicas {
		if !r.leaves {
			all = append(all, r.statuses()...)
		}
	}
	slices.SortStableFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Replica, b.Replica), cmp.Compare(a.Rank, b.Rank))
	})
	sizes := make(map[string]int) // of a model's blocks, where known
	for i := range all {
		st := &all[i]
		if size := cmp.Or(sizes[st.model], st.BlockTokens); st.BlockTokens != 0 && st.BlockTokens != size {
			st.Problem = cmp.Or(st.Problem, fmt.Sprintf(
				"its blocks have %d tokens, those of another replica of the model %d", st.BlockTokens, size))
		} else {
			sizes[st.model] = size
		}
	}
	return all
}

// Close ends every subscription and waits for them. What came from them is cleared.
func (m *Manager) Close() {
	m.mu.Lock()
	m.stop()
	m.mu.Unlock()
	m.running.Wait()
}

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

var errNoConnect = errors.New("kvevents: no gRPC connection to replicas can be had here")

const (
	defaultBytes = 16 << 20
	defaultQuiet = time.Second
)

func (o Options) withDefaults() Options {
	o.MaxBytes = cmp.Or(o.MaxBytes, defaultBytes)
	o.Quiet = cmp.Or(o.Quiet, defaultQuiet)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Connect == nil {
		o.Connect = func(context.Context, string) (grpc.ClientConnInterface, error) { return nil, errNoConnect }
	}
	return o
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Backoff waits longer after each failure, and never as long as others that began with it.
type Backoff struct{ next time.Duration }

// Wait waits; false if the context ended.
func (b *Backoff) Wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, firstRetry), lastRetry)
	return pause.For(ctx, b.next/2+rand.N(b.next/2)) == nil
}

// Reset makes the next wait the first one.
func (b *Backoff) Reset() { b.next = 0 }
