package kvevents

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/routing"
)

// replaysAtOnce bounds the replays under way in one Manager.
const replaysAtOnce = 8

// Manager follows the KV events of a fleet: of every replica whose kv_events says where they come from. Safe for use by
// many goroutines.
type Manager struct {
	opts    *Options
	sizes   sizes
	replays chan struct{}
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	// mu guards what follows; the replicas' own locks are taken under it.
	mu     sync.Mutex
	fleet  map[string]*subscription
	ending map[string]*subscription // the last one of each replica that was told to end and has not
	closed bool
}

// subscription is one replica's.
type subscription struct {
	replica  *replica
	attrs    routing.Attributes
	instance string // said last; guarded by Manager.mu
	cancel   context.CancelFunc
	done     chan struct{}
}

// NewManager returns a Manager that follows nobody yet.
func NewManager(o Options) *Manager {
	m := &Manager{opts: o.withDefaults(), replays: make(chan struct{}, replaysAtOnce), ending: map[string]*subscription{}}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// SetFleet begins to follow replicas that are new or say that they were restarted, and ends with those that are gone or
// whose source changed: what they told is cleared. It does not wait.
func (m *Manager) SetFleet(fleet []routing.Attributes) {
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

// follows reports whether these attributes change nothing for the subscription. Of a replica that was restarted, the
// Router forgets all it was told: it must be told again.
func (s *subscription) follows(a routing.Attributes) bool {
	b := s.attrs
	restarted := s.instance != a.Instance && s.instance != "" && a.Instance != ""
	return !restarted && b.KVEvents == a.KVEvents && b.KVEventsReplay == a.KVEventsReplay && b.Ranks == a.Ranks && b.Address == a.Address &&
		model(b) == model(a)
}

// model is the model whose name the replica's blocks are hashed with: the first that it says it serves.
func model(a routing.Attributes) string {
	if len(a.Models) == 0 {
		return ""
	}
	return a.Models[0]
}

// start follows a replica, once the subscription before it has ended.
func (m *Manager) start(a routing.Attributes, before *subscription) *subscription {
	s := &subscription{
		attrs: a, instance: a.Instance, done: make(chan struct{}),
		replica: &replica{id: a.ID, model: model(a), opts: m.opts, sizes: &m.sizes, sink: m.opts.Sink},
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
	src, err := fleet.ParseEventSource(s.attrs)
	switch {
	case err != nil:
		m.opts.logger().Error("warmpath: a replica's KV events are not followed", "replica", s.attrs.ID, "error", err)
		s.replica.stream(s.attrs.KVEvents, 0, nil).update(func(st *Status) { st.Problem = err.Error() })
		<-ctx.Done()
	case src.Address != "":
		var all []found
		for rank := range src.Ranks {
			address, replay := src.Rank(rank)
			all = append(all, found{address, replay, src.Topic, rank})
		}
		m.zmq(ctx, s, src.Listen, all)
	default:
		m.grpc(ctx, s, src)
	}
}

// zmq follows ZeroMQ sources.
func (m *Manager) zmq(ctx context.Context, s *subscription, listen bool, all []found) {
	r := s.replica
	var wg sync.WaitGroup
	for _, at := range all {
		sub := &subscriber{
			stream: r.stream("tcp://"+at.address, at.rank, decodeMsgpack), address: at.address, listen: listen, engine: s.attrs.Address,
			topic: at.topic, quiet: m.opts.Quiet, queue: newQueue(),
		}
		if at.replay != "" {
			sub.replay = &replayer{at.replay, m.replays}
		}
		wg.Go(func() { sub.run(ctx) })
	}
	wg.Wait()
}

var errNoConnect = errors.New("kvevents: no gRPC connection to replicas can be had here")

// grpc follows through the replica's gRPC connection.
func (m *Manager) grpc(ctx context.Context, s *subscription, src fleet.EventSource) {
	connect := func(ctx context.Context) (grpc.ClientConnInterface, error) {
		if m.opts.Connect == nil {
			return nil, errNoConnect
		}
		return m.opts.Connect(ctx, s.attrs.ID)
	}
	x := s.replica.stream(src.Subscribe+src.Discover, 0, decoder(src.Subscribe))
	if src.Subscribe != "" {
		w := watcher{stream: x, connect: connect, method: src.Subscribe}
		w.run(ctx)
		return
	}
	var b backoff
	for {
		all, err := discover(ctx, connect, src.Discover, s.attrs.Address)
		if ctx.Err() != nil {
			return
		}
		x.failed(err)
		if err == nil {
			m.zmq(ctx, s, false, all)
			return
		}
		b.wait(ctx)
	}
}

// Status returns the status of every stream, in the order of the replicas' ids.
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
	return all
}

// Close ends every subscription and waits for them. What they told is cleared.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.stop()
	m.running.Wait()
}
