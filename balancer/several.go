package balancer

import (
	"errors"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
)

// several are the connections to one replica: each is a pick_first balancer of its own.
// The replica is connected if one of them is. A call goes to the connection that is ready
// and has the fewest; the others only matter once those with fewer are busy. Where there is
// one, its state and its picker are passed on as they are.
type several struct {
	balancer.ClientConn // to the endpoint's; several intercepts UpdateState of each connection
	opts                balancer.BuildOptions
	want                *atomic.Int32

	// api makes the calls to the children one at a time, as gRPC does. It guards the fields below.
	api    sync.Mutex
	closed bool
	opened bool                     // there are connections
	latest balancer.ClientConnState // while there are none

	// mu guards what follows. Children call UpdateState with their own locks held, and the
	// endpoint's are taken under mu, so no child is called under it.
	mu    sync.Mutex
	conns []*conn
}

// conn is one connection.
type conn struct {
	balancer.ClientConn
	all    *several
	child  balancer.Balancer // guarded by several.api
	state  balancer.State    // guarded by several.mu
	waking bool              // it is being opened again; guarded by several.mu

	calls atomic.Int64
	done  func(balancer.DoneInfo) // ends a call; made once, so that picking does not allocate
}

// newSeveral returns connections that are opened when they are first updated, or on demand: by a pick, or by ExitIdle.
func newSeveral(cc balancer.ClientConn, opts balancer.BuildOptions, want *atomic.Int32, onDemand bool) *several {
	s := &several{ClientConn: cc, opts: opts, want: want, opened: !onDemand}
	if onDemand {
		wake := sync.OnceFunc(func() { go s.ExitIdle() }) // not from the pick, which may have locks
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Idle, Picker: demanding(wake)})
	}
	return s
}

// UpdateClientConnState passes the replica's addresses on, to as many connections as are
// wanted now.
func (s *several) UpdateClientConnState(state balancer.ClientConnState) error {
	s.api.Lock()
	defer s.api.Unlock()
	if !s.opened {
		s.latest = state
		return nil
	}
	return s.update(state)
}

// update is UpdateClientConnState where there are connections. Called with api held.
func (s *several) update(state balancer.ClientConnState) (err error) {
	for _, c := range s.resize() {
		err = errors.Join(err, c.child.UpdateClientConnState(state))
	}
	return err
}

// demanding opens the connections at the first pick.
type demanding func()

func (d demanding) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	d()
	return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
}

// resize opens or closes connections. Called with api held.
func (s *several) resize() []*conn {
	want := max(int(s.want.Load()), 1)
	s.mu.Lock()
	for len(s.conns) < want {
		c := &conn{ClientConn: s.ClientConn, all: s}
		c.state = balancer.State{ConnectivityState: connectivity.Connecting, Picker: waiting{}}
		c.done = func(balancer.DoneInfo) { c.calls.Add(-1) }
		s.conns = append(s.conns, c)
	}
	surplus := s.conns[want:]
	s.conns = s.conns[:want:want]
	conns := s.conns
	if len(surplus) > 0 {
		s.publish()
	}
	s.mu.Unlock()
	for _, c := range surplus {
		c.child.Close()
	}
	for _, c := range conns {
		if c.child == nil {
			c.child = balancer.Get(pickfirst.Name).Build(c, s.opts)
		}
	}
	return conns
}

// UpdateState is called by a connection's child.
func (c *conn) UpdateState(state balancer.State) {
	s := c.all
	s.mu.Lock()
	defer s.mu.Unlock()
	c.state, c.waking = state, false
	s.publish()
	s.wake()
}

// wake opens connections again that broke, unless all did: then it is for the balancer above to
// say whether they are wanted. Called with mu held.
func (s *several) wake() {
	idle := 0
	for _, c := range s.conns {
		if c.state.ConnectivityState == connectivity.Idle {
			idle++
		}
	}
	if idle == len(s.conns) {
		return
	}
	for _, c := range s.conns {
		if c.state.ConnectivityState == connectivity.Idle && !c.waking {
			c.waking = true
			go s.reopen(c) // not from here: the child holds its lock
		}
	}
}

// publish passes the state of the replica's connections to the endpoint. Called with mu held.
func (s *several) publish() {
	if len(s.conns) == 1 {
		s.ClientConn.UpdateState(s.conns[0].state)
		return
	}
	for _, state := range []connectivity.State{
		connectivity.Ready, connectivity.Connecting, connectivity.Idle, connectivity.TransientFailure,
	} {
		var in []*conn
		for _, c := range s.conns {
			if c.state.ConnectivityState == state {
				in = append(in, c)
			}
		}
		switch {
		case len(in) == 0:
		case state == connectivity.Ready:
			s.ClientConn.UpdateState(balancer.State{ConnectivityState: state, Picker: newLeastUsed(in)})
			return
		case state == connectivity.Idle:
			s.ClientConn.UpdateState(balancer.State{ConnectivityState: state, Picker: waking(pickers(in))})
			return
		default:
			s.ClientConn.UpdateState(in[len(in)-1].state)
			return
		}
	}
}

// reopen opens a connection again.
func (s *several) reopen(c *conn) {
	s.api.Lock()
	defer s.api.Unlock()
	if !s.closed {
		c.child.ExitIdle()
	}
}

// each calls do with every connection, unless they are closed. Called with api held.
func (s *several) each(do func(*conn)) {
	if s.closed {
		return
	}
	s.mu.Lock()
	conns := s.conns
	s.mu.Unlock()
	for _, c := range conns {
		do(c)
	}
}

// ResolverError is passed on.
func (s *several) ResolverError(err error) {
	s.api.Lock()
	defer s.api.Unlock()
	s.each(func(c *conn) { c.child.ResolverError(err) })
}

// ExitIdle opens the connections that are not.
func (s *several) ExitIdle() {
	s.api.Lock()
	defer s.api.Unlock()
	if s.opened {
		s.each(func(c *conn) { c.child.ExitIdle() })
		return
	}
	if s.opened = !s.closed; s.opened {
		if err := s.update(s.latest); err != nil {
			logger.Warningf("a connection is not opened: %v", err)
		}
		s.latest = balancer.ClientConnState{}
	}
}

// Close closes all connections.
func (s *several) Close() {
	s.api.Lock()
	defer s.api.Unlock()
	s.each(func(c *conn) { c.child.Close() })
	s.closed = true
}

// leastUsed picks among the connections that are ready the one with the fewest calls.
type leastUsed struct {
	conns   []*conn
	pickers []balancer.Picker
}

func newLeastUsed(conns []*conn) *leastUsed { return &leastUsed{conns, pickers(conns)} }

// ready returns how many connections of a replica are.
func ready(s balancer.State) int {
	if s.ConnectivityState != connectivity.Ready {
		return 0
	}
	if p, ok := s.Picker.(*leastUsed); ok {
		return len(p.conns)
	}
	return 1
}

// Pick counts the call in the same step, so that of calls that come together each sees
// those before it.
func (p *leastUsed) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	for {
		least, calls := 0, p.conns[0].calls.Load()
		for i := 1; i < len(p.conns) && calls > 0; i++ {
			if n := p.conns[i].calls.Load(); n < calls {
				least, calls = i, n
			}
		}
		c := p.conns[least]
		if !c.calls.CompareAndSwap(calls, calls+1) {
			continue
		}
		res, err := p.pickers[least].Pick(info)
		if err != nil {
			c.calls.Add(-1)
			return res, err
		}
		if res.Done == nil {
			res.Done = c.done
		} else {
			res.Done = chain(res.Done, c.done)
		}
		return res, nil
	}
}

// waking opens connections that are idle.
type waking []balancer.Picker

func (w waking) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	for _, p := range w {
		_, _ = p.Pick(info) // its error is that the call has to wait
	}
	return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
}

// waiting is the picker of a connection that has no state yet.
type waiting struct{}

func (waiting) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
}

func pickers(conns []*conn) []balancer.Picker {
	ps := make([]balancer.Picker, len(conns))
	for i, c := range conns {
		ps[i] = c.state.Picker
	}
	return ps
}
