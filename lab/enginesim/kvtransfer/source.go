package kvtransfer

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Errors of a leg and of a pull.
var (
	// ErrParams: the parameters are not those that the source gave out.
	ErrParams = errors.New("kvtransfer: the parameters are not what the prefill engine returned")
	// ErrUnknown: the source has no leg of this key, or has it no more.
	ErrUnknown = errors.New("kvtransfer: unknown or expired reference")
	// ErrInUse: another leg has this key.
	ErrInUse = errors.New("kvtransfer: the key is in use")
	// ErrExpired: the lease was over before the KV was pulled.
	ErrExpired = errors.New("kvtransfer: the lease is over")
	// ErrDropped: the leg was ended by the source.
	ErrDropped = errors.New("kvtransfer: the prefill leg was ended")
	// ErrLost: the other end is gone.
	ErrLost = errors.New("kvtransfer: the other engine is gone")

	// errPulled ends a leg whose KV was pulled, which is no error.
	errPulled = errors.New("kvtransfer: pulled")
)

// Stats are the counters of a source.
type Stats struct {
	// Held counts legs whose KV is computed and waits.
	Held int
	// Pulled, Expired and Dropped count legs that have ended, by how.
	Pulled, Expired, Dropped int
}

// Source serves the KV of an engine. Safe for concurrent use.
type Source struct {
	lis            net.Listener
	lease, timeout time.Duration
	quit           context.Context
	stop           context.CancelFunc
	work           sync.WaitGroup

	mu    sync.Mutex // guards what follows and the legs' state; nothing waits under it
	legs  map[string]*Leg
	news  chan struct{} // closed and replaced when a leg is announced
	stats Stats
}

// Listen starts a source. KV that is not pulled is held for the lease; a pull waits for its leg for the timeout.
func Listen(ctx context.Context, addr string, lease, timeout time.Duration) (*Source, error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &Source{lis: lis, lease: lease, timeout: timeout, legs: map[string]*Leg{}, news: make(chan struct{})}
	s.quit, s.stop = context.WithCancel(context.Background())
	s.work.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			s.work.Go(func() { s.serve(c) })
		}
	})
	return s, nil
}

// Addr is where the source listens.
func (s *Source) Addr() *net.TCPAddr { return s.lis.Addr().(*net.TCPAddr) }

// Stats are the counters of this moment.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close ends all legs and connections, as a crash would, and waits until they are gone.
func (s *Source) Close() {
	s.stop()
	s.lis.Close()
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.legs))
	s.mu.Unlock()
	for _, l := range all {
		l.Drop()
	}
	s.work.Wait()
}

// KV is what a leg has computed.
type KV struct {
	// Params are what a pull must bring.
	Params string
	// Content is the hash of its tokens, for the engine that pulls.
	Content uint64
	// Release frees it; called once, at the end of the leg.
	Release func()
}

// Leg is a prefill leg, whose KV another engine gets.
type Leg struct {
	source *Source
	key    string
	ready  chan struct{}   // closed when the KV is computed
	joined context.Context // ends when a pull comes
	join   context.CancelFunc
	over   context.Context // ends with the leg; its cause is why
	finish context.CancelCauseFunc

	// Source.mu guards what follows.
	kv    KV
	timer *time.Timer // of the lease
	pulls int
	held  bool // ready and not over
}

// Announce begins a leg under a key that no other leg has.
func (s *Source) Announce(key string) (*Leg, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.quit.Err() != nil:
		return nil, ErrDropped
	case s.legs[key] != nil:
		return nil, ErrInUse
	}
	l := &Leg{source: s, key: key, ready: make(chan struct{})}
	l.joined, l.join = context.WithCancel(context.Background())
	l.over, l.finish = context.WithCancelCause(context.Background())
	s.legs[key] = l
	close(s.news)
	s.news = make(chan struct{})
	return l, nil
}

// Joined is closed when a decode engine has asked for the leg.
func (l *Leg) Joined() <-chan struct{} { return l.joined.Done() }

// Over is closed when the leg has ended; Err is why.
func (l *Leg) Over() <-chan struct{} { return l.over.Done() }

// Err is nil if the KV was pulled, and before the end.
func (l *Leg) Err() error {
	if err := context.Cause(l.over); !errors.Is(err, errPulled) {
		return err
	}
	return nil
}

// Ready reports that the KV is computed.
func (l *Leg) Ready(kv KV) {
	s := l.source
	s.mu.Lock()
	ended := s.legs[l.key] != l
	if !ended {
		l.kv, l.held = kv, true
		s.stats.Held++
		close(l.ready)
		l.hold()
	}
	s.mu.Unlock()
	if ended {
		kv.Release()
	}
}

// hold starts the lease if no pull is under way. Caller holds Source.mu.
func (l *Leg) hold() {
	if l.held && l.pulls == 0 {
		l.timer = time.AfterFunc(l.source.lease, func() { l.end(ErrExpired) })
	}
}

// Drop ends the leg: its KV is freed, pulls fail. It does nothing at a leg that is over.
func (l *Leg) Drop() { l.end(ErrDropped) }

// end ends the leg, once. A lease that is over while a pull goes on does not count.
func (l *Leg) end(err error) {
	s := l.source
	s.mu.Lock()
	if s.legs[l.key] != l || err == ErrExpired && l.pulls > 0 { //nolint:errorlint // its own value
		s.mu.Unlock()
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.held {
		l.held = false
		s.stats.Held--
	}
	switch err { //nolint:errorlint // its own values
	case errPulled:
		s.stats.Pulled++
	case ErrExpired:
		s.stats.Expired++
	default:
		s.stats.Dropped++
	}
	delete(s.legs, l.key)
	l.finish(err)
	release := l.kv.Release
	s.mu.Unlock()
	if release != nil {
		release()
	}
}

// request is what a decode engine asks.
type request struct {
	Key    string `json:"key"`
	Params string `json:"params"`
	// Wait for the leg if it is not there yet.
	Wait bool `json:"wait,omitempty"`
}

// reply is the source's answer.
type reply struct {
	Ready   bool   `json:"ready,omitempty"`
	Content uint64 `json:"content,omitempty"`
	Error   string `json:"error,omitempty"`
}

// report ends a pull.
type report struct {
	Done bool `json:"done"`
}

// serve serves one pull. Its context ends with what the decode engine reports, or when that engine or the source is
// gone.
func (s *Source) serve(c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithCancelCause(s.quit)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { c.Close() })()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	var q request
	if in.Decode(&q) != nil {
		return
	}
	s.work.Go(func() {
		defer cancel(nil)
		var r report
		if in.Decode(&r) == nil && r.Done { // the decode engine has all
			cancel(errPulled)
		}
	})
	if err := s.pull(ctx, &q, out); err != nil && ctx.Err() == nil { // else the pull, or the source, is over
		_ = out.Encode(reply{Error: err.Error()}) // the other end may be gone
	}
}

// pull takes a pull through its leg. The error is for the decode engine.
func (s *Source) pull(ctx context.Context, q *request, out *json.Encoder) error {
	l, err := s.join(ctx, q)
	if l == nil {
		return err
	}
	defer l.leave()
	select {
	case <-l.ready:
	case <-l.Over():
		return l.Err()
	case <-ctx.Done():
		return nil
	}
	if l.kv.Params != q.Params { // written before ready was closed, and never again
		return ErrParams
	}
	if out.Encode(reply{Ready: true, Content: l.kv.Content}) != nil {
		return nil
	}
	select {
	case <-l.Over():
	case <-ctx.Done():
		if err := context.Cause(ctx); errors.Is(err, errPulled) {
			l.end(err)
		}
	}
	return nil
}

// join finds the leg of a pull and counts the pull in. It returns no leg and no error if the context has ended.
func (s *Source) join(ctx context.Context, q *request) (*Leg, error) {
	within, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for {
		s.mu.Lock()
		l, news := s.legs[q.Key], s.news
		if l != nil {
			l.pulls++
			if l.timer != nil {
				l.timer.Stop()
			}
			l.join()
		}
		s.mu.Unlock()
		if l != nil {
			return l, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case !q.Wait, within.Err() != nil:
			return nil, ErrUnknown
		}
		select {
		case <-news:
		case <-within.Done():
		}
	}
}

// leave counts a pull out; the lease begins anew.
func (l *Leg) leave() {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	l.pulls--
	l.hold()
}
