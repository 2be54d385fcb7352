// Package loadpoll polls the replicas of a fleet, and reads the load of engines that do not register themselves: by
// gRPC (GetLoads, as in SMG's servicers), or from their Prometheus page.
//
// # Rule
//
// Every replica is polled once an interval, each at its own offset, and less and less often while it does not answer.
// An engine's requests running and waiting are a load; the size of its KV cache is a capacity. A replica with several
// data-parallel ranks has the sum of their requests, and the smallest of their caches.
//
// # Complexity
//
// A goroutine for each replica; at most 64 polls of replicas that answered last are under way at once, and as many of
// others, so that replicas that hang do not hold up the rest. Only the lines of a page with a known metric are parsed.
//
// # Guarantees
//
// An answer is bounded in bytes and time, redirects are not followed, and environment variables set no proxy. No proto
// name of an engine's is registered: fields are read by number.
//
// Source: the metrics that vLLM, SGLang and TensorRT-LLM publish, for the names on the pages; the engines' published
// protos for the numbers of the fields.
package loadpoll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/strict"
)

// atOnce bounds the polls under way of replicas that answered last, and those of all others.
const atOnce = 64

// Options are a question, how often it is asked, and the receiver of the answers. All but Sleep are needed.
type Options[Answer any] struct {
	// Interval is the time between two polls of a replica. Where it does not answer, the time doubles up to Longest.
	Interval, Longest time.Duration
	// Timeout is how long an answer may take.
	Timeout time.Duration
	// Ask asks a replica.
	Ask func(ctx context.Context, r policy.Attributes) (Answer, error)
	// Report is called with each answer, or with why there is none, by several goroutines, one at a time for each replica.
	Report func(r policy.Attributes, a Answer, err error)
	// Sleep waits until the context ends or the time is over; nil = by the real clock.
	Sleep func(ctx context.Context, d time.Duration)
}

// A Poller polls the replicas of one fleet. Safe for use by many goroutines.
type Poller[Answer any] struct {
	o       Options[Answer]
	room    chan struct{} // has the polls under way of replicas that answered last
	doubt   chan struct{} // has those of all others, which may take the whole timeout
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	// mu guards what follows; nothing is locked or called under it.
	mu    sync.Mutex
	fleet map[string]polled
}

// polled is one replica.
type polled struct {
	address string
	cancel  context.CancelFunc
}

// New returns a Poller without replicas.
func New[Answer any](o Options[Answer]) *Poller[Answer] {
	if o.Sleep == nil {
		o.Sleep = func(ctx context.Context, d time.Duration) { _ = pause.For(ctx, d) }
	}
	p := &Poller[Answer]{o: o, room: make(chan struct{}, atOnce), doubt: make(chan struct{}, atOnce)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// SetFleet sets the replicas to poll. It does not wait for polls of those that left.
func (p *Poller[Answer]) SetFleet(fleet []policy.Attributes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	next := make(map[string]polled, len(fleet))
	for _, r := range fleet {
		x, ok := p.fleet[r.ID]
		if !ok || x.address != r.Address {
			ctx, cancel := context.WithCancel(p.ctx)
			x = polled{r.Address, cancel}
			p.running.Go(func() { p.follow(ctx, r) })
		}
		next[r.ID] = x
	}
	for id, x := range p.fleet {
		if now, ok := next[id]; !ok || now.address != x.address {
			x.cancel()
		}
	}
	p.fleet = next
}

// Close ends all polls and waits for them.
func (p *Poller[Answer]) Close() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.running.Wait()
}

// follow polls one replica until the context ends, first after a part of the interval.
func (p *Poller[Answer]) follow(ctx context.Context, r policy.Attributes) {
	wait, room := rand.N(p.o.Interval), p.doubt
	for failures := 0; ; {
		p.o.Sleep(ctx, wait)
		answer, err := p.ask(ctx, r, room)
		if ctx.Err() != nil {
			return
		}
		p.o.Report(r, answer, err)
		if err == nil {
			failures, room = 0, p.room
		} else {
			failures, room = failures+1, p.doubt
		}
		wait = max(min(p.o.Interval<<min(failures, 10), p.o.Longest), p.o.Interval)
		wait += rand.N(wait/5+1) - wait/10
	}
}

// ask polls once, as soon as there is room.
func (p *Poller[Answer]) ask(ctx context.Context, r policy.Attributes, room chan struct{}) (none Answer, err error) {
	select {
	case room <- struct{}{}:
		defer func() { <-room }()
	case <-ctx.Done():
		return none, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	return p.o.Ask(ctx, r)
}

// A Source is how an engine is asked: its text is one of
//
//	grpc:vllm                   GetLoads on the replica's own address, with vLLM's servicer
//	grpc:sglang                 the same with SGLang's
//	grpc:tokenspeed             the same with TokenSpeed's
//	grpc:openengine             GetLoad of OpenEngine's Control
//	grpc:orca                   the same by ORCA out of band, as server/replica serves it
//	http://HOST:8000/metrics    a page for Prometheus; HOST and PORT are those of the replica's address
type Source struct {
	replica loadprobe.Source  // the replica itself; else
	page    string            // URL with HOST and PORT
	pages   map[string]string // by id of the replica, where it has a page of its own
	http    *http.Client
}

// hostName and portName stand for those of the replica's address.
const hostName, portName = "HOST", "PORT"

// Parse reads a source, load_poll in a config, with the pages of replicas that have one of their own, by id; the error
// names the field.
func Parse(text string, pages map[string]string) (Source, error) {
	if strings.HasPrefix(text, "grpc:") {
		if len(pages) > 0 {
			return Source{}, fmt.Errorf("load_pages: replicas have no pages of their own with load_poll %q", text)
		}
		source := loadprobe.Source(text)
		return Source{replica: source}, strict.In("load_poll: ", source.Check())
	}
	err := strict.In("load_poll: ", checkPage(text))
	for id, page := range pages {
		err = cmp.Or(err, strict.In("load_pages."+id+": ", checkPage(page)))
	}
	return Source{page: text, pages: pages, http: newHTTPClient()}, err
}

func checkPage(text string) error {
	u, err := url.Parse(strings.Replace(text, ":"+portName, ":1", 1))
	switch {
	case err != nil:
		return fmt.Errorf("%q is neither grpc:NAME nor a URL", text)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.Fragment != "":
		return errors.New("want grpc:vllm, grpc:sglang, grpc:tokenspeed, grpc:openengine, grpc:orca, or a URL like http://HOST:8000/metrics without a user and a fragment")
	}
	return nil
}

// Ask asks a replica, over a connection of connect where the source is gRPC.
func (s Source) Ask(
	ctx context.Context, r policy.Attributes, connect func(ctx context.Context, id string) (grpc.ClientConnInterface, error),
) (load.Report, error) {
	if s.replica != "" {
		conn, err := connect(ctx, r.ID)
		if err != nil {
			return load.Report{}, err
		}
		return s.replica.Ask(ctx, conn)
	}
	page, err := s.pageOf(r.ID, r.Address)
	if err != nil {
		return load.Report{}, err
	}
	return read(ctx, s.http, page)
}

// Close closes the connections to pages.
func (s Source) Close() {
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
}

// pageOf is where the page of a replica at an address is.
func (s Source) pageOf(id, address string) (string, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", address)
	}
	host := strings.TrimSuffix(address, ":"+port) // with the brackets of an IPv6 address
	return strings.NewReplacer(hostName, host, portName, port).Replace(cmp.Or(s.pages[id], s.page)), nil
}
