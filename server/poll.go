package server

import (
	"cmp"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadpoll"
)

// LoadPoll reads the load of replicas that do not register themselves.
type LoadPoll struct {
	// From is grpc:vllm or grpc:sglang (GetLoads), or the URL of a page for Prometheus, in which HOST and PORT are those
	// of the replica's address.
	From string `json:"from"`
	// Pages are the URLs of replicas whose page is elsewhere, by id of the replica; HOST and PORT as in from.
	Pages map[string]string `json:"pages,omitempty"`
	// Interval is how often each replica is polled; 50ms to 1m, default 500ms.
	Interval policy.Duration `json:"interval,omitempty"`
}

// pollTimeout is how long an answer may take.
const pollTimeout = time.Second

func (p LoadPoll) withDefaults() LoadPoll {
	p.Interval = cmp.Or(p.Interval, policy.Duration(500*time.Millisecond))
	return p
}

func (p *LoadPoll) validate() error {
	if p == nil {
		return nil
	}
	if _, err := loadpoll.Parse(p.From, nil); err != nil {
		return fmt.Errorf("load_poll.from: %w", err)
	}
	if _, err := loadpoll.Parse(p.From, p.Pages); err != nil {
		return fmt.Errorf("load_poll.pages: %w", err)
	}
	return durationWithin("load_poll.interval", p.Interval, 50*time.Millisecond, time.Minute)
}

// polls reads the load of a deployment's replicas, and keeps the answers. Safe for use by many goroutines, but for
// configure.
type polls struct {
	log   *slog.Logger
	now   func() time.Time
	conns *conns
	stir  func() // called when the size of a replica's cache has changed

	config *LoadPoll // used by configure alone

	mu      sync.Mutex // guards what follows; the poller's lock is taken under it
	poller  *loadpoll.Poller
	answers map[string]polled // by id; of members only
}

// polled is the last answer of a replica. Its load expires; the size of its cache does not.
type polled struct {
	load     replicaLoad // negative = none yet
	at       time.Time
	kvTokens int
}

var neverPolled = replicaLoad{-1, -1}

// configure polls by a config, nil = not at all. It waits for the polls under way, and is called by one goroutine at a
// time.
func (x *polls) configure(c *LoadPoll) {
	if reflect.DeepEqual(c, x.config) {
		return
	}
	x.config = c
	var poller *loadpoll.Poller
	if c != nil {
		source, err := loadpoll.Parse(c.From, c.Pages)
		if err != nil {
			x.log.Error("warmpath: load is not polled", "error", err) // cannot happen: the config was checked
			return
		}
		poller = loadpoll.New(loadpoll.Options{
			Source: source, Connect: x.conns.connect, Report: x.take, Logger: x.log,
			Interval: time.Duration(c.Interval), Timeout: pollTimeout,
		})
	}
	x.mu.Lock()
	before := x.poller
	x.poller = poller
	for id, a := range x.answers { // sizes do not expire
		x.answers[id] = polled{load: neverPolled, kvTokens: a.kvTokens}
	}
	x.mu.Unlock()
	if before != nil {
		before.Close()
	}
}

// follow sets the members to poll.
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
	load := replicaLoad{int64(min(l.Ongoing, maxOngoing)), -1}
	next := polled{load: load, at: x.now(), kvTokens: cmp.Or(l.KVTokens, was.kvTokens)}
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
func (x *polls) loadOf(id string) (load replicaLoad, at time.Time, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a, found := x.answers[id]
	return a.load, a.at, found && a.load != neverPolled
}

func (x *polls) current() *loadpoll.Poller {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.poller
}

// problems are the errors of replicas that do not answer, by id.
func (x *polls) problems() map[string]string {
	if p := x.current(); p != nil {
		return p.Problems()
	}
	return nil
}

// failed counts the polls without an answer since the config was last changed.
func (x *polls) failed() int64 {
	if p := x.current(); p != nil {
		return p.Failed()
	}
	return 0
}
