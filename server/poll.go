package server

import (
	"cmp"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadpoll"
)

// LoadPoll says how the server asks replicas for their load that do not register themselves.
type LoadPoll struct {
	// From is grpc:vllm or grpc:sglang (GetLoads), or the URL of a page for Prometheus, in which HOST and PORT are those of the
	// replica's address.
	From string `json:"from"`
	// Pages are the URLs of replicas whose page is elsewhere, by id of the replica; HOST and PORT as in from.
	Pages map[string]string `json:"pages,omitempty"`
	// Interval is how often each replica is asked; 0 = 500ms.
	Interval policy.Duration `json:"interval,omitempty"`
	// Timeout is how long an answer may take; 0 = 1s.
	Timeout policy.Duration `json:"timeout,omitempty"`
}

// Defaults of [LoadPoll].
const (
	defaultPollInterval = policy.Duration(500 * time.Millisecond)
	defaultPollTimeout  = policy.Duration(time.Second)
)

func (p *LoadPoll) validate() error {
	if _, err := loadpoll.Parse(p.From, nil); err != nil {
		return fmt.Errorf("from: %w", err)
	}
	if _, err := loadpoll.Parse(p.From, p.Pages); err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	for _, f := range []struct {
		name     string
		value    policy.Duration
		min, max time.Duration
	}{
		{"interval", p.Interval, 50 * time.Millisecond, time.Minute},
		{"timeout", p.Timeout, 10 * time.Millisecond, time.Minute},
	} {
		if f.value != 0 && (f.value < policy.Duration(f.min) || f.value > policy.Duration(f.max)) {
			return fmt.Errorf("%s: %v is not between %v and %v", f.name, f.value, f.min, f.max)
		}
	}
	return nil
}

// polls asks the replicas of one deployment for their load, and keeps the answers. Safe for use by many goroutines, but for
// configure.
type polls struct {
	log  *slog.Logger
	now  func() time.Time
	dial func(described) (*grpc.ClientConn, error)
	stir func() // called when a replica's capacity has changed

	config *LoadPoll // of configure alone

	mu      sync.Mutex // guards what follows; the poller's and the calls' locks are taken under it
	poller  *loadpoll.Poller
	calls   *calls
	answers map[string]polled // by id; of members only
}

// polled is the last answer of a replica. Only its load is ever too old.
type polled struct {
	load     book // negative = none yet
	heard    time.Time
	kvTokens int
}

var neverPolled = book{-1, -1}

// configure asks as a config says, nil = not at all, those that follow names. It waits for the questions under way, and is
// called by one goroutine at a time.
func (x *polls) configure(c *LoadPoll) {
	if reflect.DeepEqual(c, x.config) {
		return
	}
	x.config = c
	var poller *loadpoll.Poller
	var conns *calls
	if c != nil {
		source, err := loadpoll.Parse(c.From, c.Pages)
		if err != nil {
			x.log.Error("warmpath: load is not asked for", "error", err) // the config was checked
			return
		}
		conns = &calls{dial: x.dial}
		poller = loadpoll.New(loadpoll.Options{
			Source: source, Connect: conns.connect, Report: x.take, Logger: x.log,
			Interval: time.Duration(cmp.Or(c.Interval, defaultPollInterval)), Timeout: time.Duration(cmp.Or(c.Timeout, defaultPollTimeout)),
		})
	}
	x.mu.Lock()
	before, beforeConns := x.poller, x.calls
	x.poller, x.calls = poller, conns
	for id, a := range x.answers { // sizes do not expire
		x.answers[id] = polled{load: neverPolled, kvTokens: a.kvTokens}
	}
	x.mu.Unlock()
	if before != nil {
		before.Close()
		beforeConns.close()
	}
}

// follow has these members asked.
func (x *polls) follow(order []*member) {
	x.mu.Lock()
	defer x.mu.Unlock()
	answers := make(map[string]polled, len(order))
	fleet := make([]policy.Attributes, len(order))
	for i, m := range order {
		answers[m.ID] = polled{load: neverPolled}
		if a, found := x.answers[m.ID]; found {
			answers[m.ID] = a
		}
		fleet[i] = m.Attributes
	}
	x.answers = answers
	if x.poller != nil {
		x.calls.setFleet(order)
		x.poller.SetFleet(fleet)
	}
}

// take keeps the answer of a replica.
func (x *polls) take(id string, l loadpoll.Load) {
	if x.changes(id, l) {
		x.stir()
	}
}

func (x *polls) changes(id string, l loadpoll.Load) (capacity bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was, found := x.answers[id]
	if !found || x.poller == nil {
		return false
	}
	next := polled{load: book{int64(min(l.Ongoing, maxOngoing)), -1}, heard: x.now(), kvTokens: cmp.Or(l.KVTokens, was.kvTokens)}
	x.answers[id] = next
	return next.kvTokens != was.kvTokens
}

// kvTokens is the size of a replica's cache, 0 = not known.
func (x *polls) kvTokens(id string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.answers[id].kvTokens
}

// loadOf is the load of a replica that has answered.
func (x *polls) loadOf(id string) (load book, heard time.Time, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a, found := x.answers[id]
	return a.load, a.heard, found && a.load != neverPolled
}

func (x *polls) current() *loadpoll.Poller {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.poller
}

// problems are why replicas cannot be asked, by id.
func (x *polls) problems() map[string]string {
	if p := x.current(); p != nil {
		return p.Problems()
	}
	return nil
}

// failed counts the questions without an answer since the config was last changed.
func (x *polls) failed() int64 {
	if p := x.current(); p != nil {
		return p.Failed()
	}
	return 0
}
