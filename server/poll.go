package server

import (
	"fmt"
	"reflect"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/routing"
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

// polls is the asking of one deployment's replicas, and what they said.
type polls struct {
	config *LoadPoll
	poller *loadpoll.Poller // nil where nobody is asked
	calls  *calls

	// What replicas said, by id; guarded by the deployment's mutex.
	said map[string]saying
}

// A saying is what a replica said of itself when it was asked. Only its load is ever too old.
type saying struct {
	load     book
	heard    time.Time
	kvTokens int
}

// repoll asks as a config says. Called without mu, by one goroutine at a time.
func (d *deployment) repoll(c *LoadPoll) {
	if reflect.DeepEqual(c, d.polls.config) {
		return
	}
	next := polls{config: c, said: make(map[string]saying)}
	if c != nil {
		source, err := loadpoll.Parse(c.From, c.Pages)
		if err != nil {
			d.log.Error("warmpath: load is not asked for", "error", err) // the config was checked
			return
		}
		next.calls = &calls{dial: d.dial}
		next.poller = loadpoll.New(loadpoll.Options{
			Source: source, Connect: next.calls.connect, Report: d.polled, Logger: d.log,
			Interval: time.Duration(orDuration(c.Interval, defaultPollInterval)), Timeout: time.Duration(orDuration(c.Timeout, defaultPollTimeout)),
		})
	}
	d.mu.Lock()
	before := d.polls
	for id, s := range before.said { // sizes do not expire
		next.said[id] = saying{load: book{-1, -1}, kvTokens: s.kvTokens}
	}
	d.polls = next
	d.askFleet()
	d.mu.Unlock()
	before.close()
}

func orDuration(d, or policy.Duration) policy.Duration {
	if d == 0 {
		return or
	}
	return d
}

// close waits for those who are being asked, and who may wait for the deployment's mutex.
func (p *polls) close() {
	if p.poller != nil {
		p.poller.Close()
		p.calls.close()
	}
}

// askFleet has the members asked that there are now. Called with mu held.
func (d *deployment) askFleet() {
	for id := range d.polls.said {
		if d.roster.byID[id] == nil {
			delete(d.polls.said, id)
		}
	}
	if d.polls.poller == nil {
		return
	}
	fleet := make([]routing.Attributes, len(d.roster.order))
	for i, m := range d.roster.order {
		fleet[i] = m.Attributes
	}
	d.polls.calls.setFleet(d.roster.order)
	d.polls.poller.SetFleet(fleet)
}

// polled takes what a replica said.
func (d *deployment) polled(id string, l loadpoll.Load) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.roster.byID[id] == nil || d.polls.poller == nil {
		return
	}
	was := d.polls.said[id]
	next := saying{load: book{int64(min(l.Ongoing, maxOngoing)), -1}, heard: d.now(), kvTokens: l.KVTokens}
	if next.kvTokens == 0 {
		next.kvTokens = was.kvTokens
	}
	d.polls.said[id] = next
	if next.kvTokens != was.kvTokens {
		d.stirred = true
	}
}

// size fills in how large a replica's cache is where nobody but itself has said so. Called with mu held.
func (d *deployment) size(m *described) {
	if m.KVTokens == 0 {
		m.KVTokens = d.polls.said[m.ID].kvTokens
	}
}

// saidOf is what a replica says of its load, as it registered or as it was asked; false if it never did. Called with mu held.
func (d *deployment) saidOf(id string) (load book, heard time.Time, ok bool) {
	if r, tells := d.registered[id]; tells && r.load != (book{-1, -1}) {
		return r.load, r.heard, true
	}
	s, tells := d.polls.said[id]
	return s.load, s.heard, tells && s.load != book{-1, -1}
}

// pollProblems returns why replicas cannot be asked, by id.
func (d *deployment) pollProblems() map[string]string {
	d.mu.Lock()
	poller := d.polls.poller
	d.mu.Unlock()
	if poller == nil {
		return nil
	}
	return poller.Problems()
}

// pollsFailed counts the questions that came to nothing since the config was last changed.
func (d *deployment) pollsFailed() int64 {
	d.mu.Lock()
	poller := d.polls.poller
	d.mu.Unlock()
	if poller == nil {
		return 0
	}
	return poller.Failed()
}
