package kubernetes

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/target"
)

// A query is what a target asks for.
type query interface {
	// follow follows the API server's objects until the context ends. It calls publish from one goroutine, after each
	// change: with a fleet, or with nil where the last fleet stays, and with what is wrong.
	follow(ctx context.Context, c *cluster, publish func([]policy.Attributes, error))
}

// A sourceKey names a source.
type sourceKey struct {
	target string
	logger *slog.Logger
}

// A source follows one target for all channels of the process that were dialled with it, so that a look-aside server
// and many channels cost the API server one watch. It ends with the last of them.
type source struct {
	key    sourceKey
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing follows any more
	now    atomic.Pointer[result]

	channels map[*channel]bool // guarded by sources.mu
}

// A result is what a source has published; never written afterwards.
type result struct {
	fleets int // published so far; 0 = none
	fleet  []policy.Attributes
	err    error // of the last attempt
}

// sources are those in use.
var sources = struct {
	mu   sync.Mutex // guards what follows, and the channels of each source
	all  map[sourceKey]*source
	last map[sourceKey][]policy.Attributes // fleets of those that ended: a channel leaves idleness without an API server
}{all: make(map[sourceKey]*source), last: make(map[sourceKey][]policy.Attributes)}

// join gives a channel the results of a source, which starts with its first channel.
func join(key sourceKey, q query, c *cluster, cc resolver.ClientConn, own bool) *channel {
	sources.mu.Lock()
	defer sources.mu.Unlock()
	s := sources.all[key]
	if s == nil {
		ctx, cancel := context.WithCancel(context.Background())
		s = &source{key: key, cancel: cancel, done: make(chan struct{}), channels: make(map[*channel]bool)}
		s.now.Store(&result{})
		sources.all[key] = s
		go func() {
			defer close(s.done)
			defer c.close()
			q.follow(ctx, c, s.publish)
		}()
	}
	ch := &channel{source: s, cc: cc, own: own, wake: make(chan struct{}, 1), done: make(chan struct{})}
	ch.ctx, ch.cancel = context.WithCancel(context.Background())
	s.channels[ch] = true
	ch.wake <- struct{}{}
	go ch.run()
	return ch
}

// leave ends a channel, and the source with the last one.
func (s *source) leave(ch *channel) {
	sources.mu.Lock()
	delete(s.channels, ch)
	unused := len(s.channels) == 0
	if unused {
		delete(sources.all, s.key)
		if now := s.now.Load(); now.fleets > 0 {
			sources.last[s.key] = now.fleet
		}
	}
	sources.mu.Unlock()
	if unused {
		s.cancel()
		<-s.done
	}
}

// publish gives a result to the channels, where it is new.
func (s *source) publish(fleet []policy.Attributes, err error) {
	was := s.now.Load()
	now := &result{fleets: was.fleets, fleet: was.fleet, err: err}
	sources.mu.Lock()
	defer sources.mu.Unlock()
	if fleet == nil && err != nil && was.fleets == 0 {
		fleet = sources.last[s.key]
	}
	changed := fleet != nil && (was.fleets == 0 || !slices.EqualFunc(fleet, was.fleet, policy.Attributes.Equal))
	if changed {
		now.fleets, now.fleet = now.fleets+1, fleet
	}
	if !changed && text(err) == text(was.err) {
		return
	}
	s.log(was, now)
	s.now.Store(now)
	for ch := range s.channels {
		select {
		case ch.wake <- struct{}{}:
		default: // it has not looked yet
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// log writes a line when a failure begins and when it ends.
func (s *source) log(was, now *result) {
	switch {
	case now.err != nil && was.err == nil:
		s.key.logger.Warn("warmpath: Kubernetes cannot be followed, the last replicas stay",
			"target", s.key.target, "replicas", len(now.fleet), "error", now.err)
	case now.err == nil && was.err != nil:
		s.key.logger.Info("warmpath: Kubernetes is followed again", "target", s.key.target, "replicas", len(now.fleet))
	}
}

// A channel is the resolver of one channel. Its goroutine passes on the last result and none that was overtaken.
type channel struct {
	source *source
	cc     resolver.ClientConn
	own    bool // each replica keeps its authority
	wake   chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

func (c *channel) run() {
	defer close(c.done)
	sent := &result{}
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		}
		now := c.source.now.Load()
		if now.fleets != sent.fleets {
			// An error would ask for another resolution, which has the same result.
			_ = c.cc.UpdateState(target.State(now.fleet, c.own))
		}
		if now.err != nil && text(now.err) != text(sent.err) {
			c.cc.ReportError(now.err)
		}
		sent = now
	}
}

// ResolveNow does nothing: changes come unasked.
func (*channel) ResolveNow(resolver.ResolveNowOptions) {}

// Close returns when no update is under way any more.
func (c *channel) Close() {
	c.cancel()
	<-c.done
	c.source.leave(c)
}
