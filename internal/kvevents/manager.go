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
	shared  *shared
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	// mu guards the fields below. The locks of the replicas' statuses are taken under it.
	mu     sync.Mutex
	fleet  map[string]*subscription
	ending map[string]*subscription // the last one of each replica that is to end and has not ended
	closed bool
}

// subscription is one replica's.
type subscription struct {
	replica  *replica
	attrs    policy.Attributes
	instance string // the latest; guarded by Manager.mu
	cancel   context.CancelFunc
	done     chan struct{}
}

// NewManager returns a Manager that follows no replica yet.
func NewManager(o Options) *Manager {
	m := &Manager{ending: map[string]*subscription{}}
	m.shared = &shared{Options: o.withDefaults(), replays: make(chan struct{}, replaysAtOnce)}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// SetFleet begins to follow replicas that are new or were restarted, and ends with those that are gone or whose source
// changed: what came from them is cleared. It does not wait.
func (m *Manager) SetFleet(fleet []policy.Attributes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	old := m.fleet
	m.fleet = make(map[string]*subscription, len(fleet))
	for _, a := range fleet {
		if s := old[a.ID]; s != nil && s.follows(a) {
			s.instance = a.Instance
			m.fleet[a.ID] = s
			delete(old, a.ID)
		}
	}
	for id, s := range old {
		s.cancel()
		m.ending[id] = s
	}
	for _, a := range fleet {
		if a.KVEvents != "" && m.fleet[a.ID] == nil {
			m.fleet[a.ID] = m.start(a, m.ending[a.ID])
		}
	}
}

// follows reports whether these attributes change nothing for the subscription. The Router forgets the cache of a
// replica that was restarted: it must get it again.
func (s *subscription) follows(a policy.Attributes) bool {
	b := s.attrs
	restarted := s.instance != a.Instance && s.instance != "" && a.Instance != ""
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

// start follows a replica, once the subscription before it has ended.
func (m *Manager) start(a policy.Attributes, before *subscription) *subscription {
	s := &subscription{
		attrs: a, instance: a.Instance, done: make(chan struct{}),
		replica: &replica{id: a.ID, model: model(a), shared: m.shared},
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(m.ctx)
	m.running.Go(func() {
		defer m.ended(s)
		if before != nil {
			<-before.done
		}
		m.follow(ctx, s)
		for _, x := range s.replica.streams {
			x.clear()
		}
	})
	return s
}

func (m *Manager) ended(s *subscription) {
	s.cancel()
	close(s.done)
	m.mu.Lock()
	defer m.mu.Unlock()
	if id := s.attrs.ID; m.ending[id] == s {
		delete(m.ending, id)
	}
}

// follow follows until the context ends.
func (m *Manager) follow(ctx context.Context, s *subscription) {
	src, err := ParseSource(s.attrs)
	switch {
	case err != nil:
		m.shared.Logger.Error("warmpath: a replica's KV events are not followed", "replica", s.attrs.ID, "error", err)
		s.replica.stream(s.attrs.KVEvents, 0, nil).Update(func(st *Status) { st.Problem = err.Error() })
		<-ctx.Done()
	case src.Subscribe != "":
		newWatcher(ctx, s.replica, m.connector(s), src.Subscribe).run(ctx)
	case src.Discover != "":
		m.discover(ctx, s, src.Discover)
	default:
		all := make([]Socket, src.Ranks)
		for rank := range all {
			address, replay := src.Rank(rank)
			all[rank] = Socket{
				Address: address, Listen: src.Listen, Replay: replay, Topic: src.Topic, Rank: rank, Engine: s.attrs.Address,
			}
		}
		s.replica.sockets(ctx, all)
	}
}

// sockets follows ZeroMQ sockets.
func (r *replica) sockets(ctx context.Context, all []Socket) {
	var wg sync.WaitGroup
	for _, at := range all {
		s := r.stream("tcp://"+at.Address, at.Rank, zeroMQ.Decode)
		wg.Go(func() { zeroMQ.Follow(ctx, s, at) })
	}
	wg.Wait()
}

var errNoConnect = errors.New("kvevents: no gRPC connection to replicas can be had here")

// connector returns connections to the subscription's replica.
func (m *Manager) connector(s *subscription) connector {
	return func(ctx context.Context) (grpc.ClientConnInterface, error) {
		if m.shared.Connect == nil {
			return nil, errNoConnect
		}
		return m.shared.Connect(ctx, s.attrs.ID)
	}
}

// discover asks the replica for its ZeroMQ sockets until it names some, and follows them.
func (m *Manager) discover(ctx context.Context, s *subscription, method string) {
	x := s.replica.stream(method, 0, nil)
	for b := new(Backoff); ; {
		all, err := discover(ctx, m.connector(s), method, s.attrs.Address)
		if ctx.Err() != nil {
			return
		}
		x.Failed(err)
		if err == nil {
			s.replica.sockets(ctx, all)
			return
		}
		b.Wait(ctx)
	}
}

// Status returns the status of every stream, in the order of the replicas' ids. That replicas of one model have blocks
// of different sizes is a problem of the later ones: equal prompts have different hashes there.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Status
	for _, s := range m.fleet {
		all = append(all, s.replica.Status()...)
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
	m.closed = true
	m.mu.Unlock()
	m.stop()
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
