package kvevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/netutil"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// maxDialed bounds the engines that are connected to one port.
const maxDialed = 4096

// ports are the process's ports on which engines connect, by address. Every subscriber of an address shares its port,
// whatever channel or deployment it is for.
var ports = struct {
	mu   sync.Mutex // guards the map, and the ports' subscribers and problems; nothing is called under it
	open map[string]*port
}{open: make(map[string]*port)}

// port is one listener. It is open as long as it has subscribers.
type port struct {
	address     string
	subscribers []*subscriber // never written in place
	problem     error         // why it does not listen
	stop        context.CancelFunc
	done        chan struct{}
}

var errShared = errors.New("kvevents: another replica listens on this port, and the topics do not distinguish them")

// listen waits on the subscriber's port for its engine until the context ends.
func (s *subscriber) listen() {
	for b := new(kvevents.Backoff); ; {
		err := s.join()
		if err != nil {
			s.Failed(err)
		}
		if err != errShared {
			<-s.ctx.Done()
			s.leave()
			return
		}
		if !b.Wait(s.ctx) {
			return
		}
	}
}

// join makes the subscriber one of its port, which it opens for the first one. errShared means that it is none, since
// another replica's topic overlaps; another error is why the port does not listen now.
func (s *subscriber) join() error {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	p := ports.open[s.Address]
	if p == nil {
		ctx, stop := context.WithCancel(context.Background())
		p = &port{address: s.Address, stop: stop, done: make(chan struct{})}
		ports.open[s.Address] = p
		go p.run(ctx)
	}
	if slices.ContainsFunc(p.subscribers, func(o *subscriber) bool {
		overlap := strings.HasPrefix(o.Topic, s.Topic) || strings.HasPrefix(s.Topic, o.Topic)
		return overlap && o.Attrs.Address != s.Attrs.Address
	}) {
		return errShared
	}
	p.subscribers = append(slices.Clip(p.subscribers), s)
	return p.problem
}

// leave takes the subscriber out of its port. The last one closes it, and waits until it is closed.
func (s *subscriber) leave() {
	ports.mu.Lock()
	p := ports.open[s.Address]
	p.subscribers = slices.DeleteFunc(slices.Clone(p.subscribers), func(o *subscriber) bool { return o == s })
	last := len(p.subscribers) == 0
	if last {
		delete(ports.open, s.Address)
	}
	ports.mu.Unlock()
	if last {
		p.stop()
		<-p.done
	}
}

// all returns the subscribers now.
func (p *port) all() []*subscriber {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	return p.subscribers
}

// failed notes why the port does not listen, nil that it does, and returns the subscribers now.
func (p *port) failed(err error) []*subscriber {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	p.problem = err
	return p.subscribers
}

// run listens until the context ends.
func (p *port) run(ctx context.Context) {
	defer close(p.done)
	for b := new(kvevents.Backoff); ctx.Err() == nil; b.Wait(ctx) {
		err := p.accept(ctx)
		for _, s := range p.failed(err) {
			s.Failed(err)
		}
	}
}

// accept takes the connections of engines, each in a goroutine of its own, until the listener fails.
func (p *port) accept(ctx context.Context) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	p.failed(nil)
	lis = netutil.LimitListener(lis, maxDialed)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer lis.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { lis.Close() })
	for n := uint64(1); ; n++ {
		raw, err := lis.Accept()
		if err != nil {
			return err
		}
		wg.Go(func() {
			if x, err := openPeer(ctx, raw, "SUB"); err == nil {
				p.read(x, n)
			}
		})
	}
}

// read hands what an engine publishes on connection n to the subscribers of its topic until the connection breaks. It
// takes every topic: those of subscribers may change. Where there is one subscriber the connection is its engine's from
// the beginning.
func (p *port) read(x *peer, n uint64) {
	err := x.subscribe("", func(frames [][]byte) error {
		all := p.all()
		for _, s := range all {
			if (len(all) == 1 || s.wants(frames)) && s.adopt(n) && frames != nil {
				_ = s.put(frames)
			}
		}
		return nil
	})
	for _, s := range p.all() {
		if s.newest.CompareAndSwap(n, 0) && s.ctx.Err() == nil {
			s.Failed(fmt.Errorf("kvevents: the engine's connection: %w", err))
		}
	}
}

// adopt makes connection n the one that is read, unless a newer one is; false in that case.
func (s *subscriber) adopt(n uint64) bool {
	was := s.newest.Load()
	for was < n && !s.newest.CompareAndSwap(was, n) {
		was = s.newest.Load()
	}
	if was < n {
		s.Failed(nil)
		_ = s.put(nil)
	}
	return was <= n
}
