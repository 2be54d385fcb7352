package kvevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/go-zeromq/zmq4"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// maxDialed bounds the engines that are connected to one port.
const maxDialed = 4096

// listeners are the process's ports on which engines connect. Every subscription of an address shares its port,
// whatever channel or deployment it is for.
var listeners = ports{open: make(map[string]*port)}

type ports struct {
	mu   sync.Mutex // guards the map and the ports' users; nothing is called under it
	open map[string]*port
}

// port is one listener. It lives as long as it is used.
type port struct {
	address string
	users   int
	stop    context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex // guards what follows
	readers []*reader
	dialed  int
	problem error // why it does not listen
}

// reader is a subscriber's part of a port.
type reader struct {
	*subscriber
	ctx context.Context

	mu     sync.Mutex // guards newest
	newest *peer      // the connection that is read
}

var errShared = errors.New("kvevents: another replica listens on this port, and the topics do not distinguish them")

// serve waits on the subscriber's port for its engine until the context ends.
func (ps *ports) serve(ctx context.Context, s *subscriber) {
	p := ps.join(s.Address)
	defer ps.leave(p)
	r := &reader{subscriber: s, ctx: ctx}
	var b kvevents.Backoff
	for !p.add(r) {
		s.Failed(errShared)
		if !b.Wait(ctx) {
			return
		}
	}
	<-ctx.Done()
	p.remove(r)
}

// join returns the port of an address, which it opens for the first one.
func (ps *ports) join(address string) *port {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.open[address]
	if p == nil {
		ctx, stop := context.WithCancel(context.Background())
		p = &port{address: address, stop: stop, done: make(chan struct{})}
		ps.open[address] = p
		go p.run(ctx)
	}
	p.users++
	return p
}

// leave closes the port after the last one, and waits until it is closed.
func (ps *ports) leave(p *port) {
	ps.mu.Lock()
	p.users--
	last := p.users == 0
	if last {
		delete(ps.open, p.address)
	}
	ps.mu.Unlock()
	if last {
		p.stop()
		<-p.done
	}
}

// add gives a reader the messages of its topic; false if another replica's topic overlaps with it.
func (p *port) add(r *reader) bool {
	p.mu.Lock()
	shared := slices.ContainsFunc(p.readers, func(o *reader) bool {
		return o.Engine != r.Engine && (strings.HasPrefix(o.Topic, r.Topic) || strings.HasPrefix(r.Topic, o.Topic))
	})
	problem := p.problem
	if !shared {
		p.readers = append(p.readers, r)
	}
	p.mu.Unlock()
	if !shared && problem != nil {
		r.Failed(problem)
	}
	return !shared
}

func (p *port) remove(r *reader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers = slices.DeleteFunc(slices.Clone(p.readers), func(o *reader) bool { return o == r })
}

// all returns the readers now. The slice is never written.
func (p *port) all() []*reader {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.readers)
}

// run listens until the context ends.
func (p *port) run(ctx context.Context) {
	defer close(p.done)
	var b kvevents.Backoff
	for ctx.Err() == nil {
		if err := p.listen(ctx); ctx.Err() == nil {
			p.failed(err)
			b.Wait(ctx)
		}
	}
}

// failed notes why the port does not listen; nil that it does.
func (p *port) failed(err error) {
	p.mu.Lock()
	p.problem = err
	p.mu.Unlock()
	if err != nil {
		for _, r := range p.all() {
			r.Failed(err)
		}
	}
}

// listen takes the connections of engines, each in a goroutine of its own.
func (p *port) listen(ctx context.Context) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", p.address)
	if err != nil {
		return err
	}
	p.failed(nil)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { lis.Close() })
	var wg sync.WaitGroup
	defer func() {
		cancel()
		stop()
		lis.Close()
		wg.Wait()
	}()
	for {
		raw, err := lis.Accept()
		if err != nil {
			return err
		}
		if !p.more() {
			raw.Close()
			continue
		}
		wg.Go(func() {
			defer p.less()
			if x, err := openPeer(ctx, raw, zmq4.Sub, true); err == nil {
				p.read(x)
			}
		})
	}
}

func (p *port) more() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dialed >= maxDialed {
		return false
	}
	p.dialed++
	return true
}

func (p *port) less() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialed--
}

// read hands what an engine publishes to the readers of its topic until the connection breaks. Where there is one
// reader the connection is its engine's from the beginning.
func (p *port) read(x *peer) {
	defer x.close()
	err := x.send([]byte{1}) // every topic: those of readers may change
	if all := p.all(); err == nil && len(all) == 1 {
		all[0].adopt(x)
	}
	for err == nil {
		var frames [][]byte
		if frames, err = x.receive(); err != nil {
			break
		}
		all := p.all()
		for _, r := range all {
			if len(all) == 1 || r.wants(frames) {
				r.take(x, frames)
			}
		}
	}
	for _, r := range p.all() {
		r.lostPeer(x, fmt.Errorf("kvevents: the engine's connection: %w", err))
	}
}

// wants reports whether a message is of the reader's topic.
func (r *reader) wants(frames [][]byte) bool {
	return len(frames) == 3 && strings.HasPrefix(string(frames[0]), r.Topic)
}

// take queues a message. The connection that was made last is the one that counts.
func (r *reader) take(x *peer, frames [][]byte) {
	if r.adopt(x) {
		r.queue.put(r.ctx, newMessage(frames))
	}
}

// adopt makes the connection the one that is read, unless a newer one is; false in that case.
func (r *reader) adopt(x *peer) bool {
	r.mu.Lock()
	is := r.newest == x
	newer := !is && (r.newest == nil || x.opened.After(r.newest.opened))
	if newer {
		r.newest = x
	}
	r.mu.Unlock()
	if newer {
		r.Failed(nil)
		r.queue.put(r.ctx, message{opened: true})
	}
	return is || newer
}

// lostPeer notes that the connection that is read has ended.
func (r *reader) lostPeer(x *peer, err error) {
	r.mu.Lock()
	is := r.newest == x
	if is {
		r.newest = nil
	}
	r.mu.Unlock()
	if is && r.ctx.Err() == nil {
		r.Failed(err)
	}
}
