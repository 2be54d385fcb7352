package tests

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/enginesim"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
)

// contents is the actual content of an engine's cache.
type contents struct {
	log  *kvpublish.Log
	mu   sync.Mutex // guards the set
	held map[uint64]bool
}

// KVEvents implements enginesim.Listener.
func (c *contents) KVEvents(at time.Duration, events []enginesim.KVEvent) {
	c.log.KVEvents(at, events)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		for _, h := range e.Hashes {
			if e.Stored {
				c.held[h] = true
			} else {
				delete(c.held, h)
			}
		}
	}
}

func (c *contents) copy() map[uint64]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := make(map[uint64]bool, len(c.held))
	for h := range c.held {
		held[h] = true
	}
	return held
}

// simulated is an engine behind proxies that keep their addresses over its restarts.
type simulated struct {
	t         testing.TB
	encoding  kvpublish.Encoding // "" = gRPC only
	drop      func(uint64) bool
	keep      int
	block     int // tokens in a block
	kvTokens  int
	rpc       *proxy // of the load
	feed      *proxy // of SubscribeKvEvents
	pub, back *proxy

	server   *grpcserver.Server
	log      *kvpublish.Log
	contents *contents
	zmq      *kvpublish.Publisher
	conn     *grpc.ClientConn // of the load
	feedConn *grpc.ClientConn
	received atomic.Int64 // messages on feedConn
}

const simulatedBlocks = 96

func simulate(t testing.TB, encoding kvpublish.Encoding, drop func(uint64) bool) *simulated {
	return simulateBlocks(t, encoding, drop, 16, 16*simulatedBlocks)
}

// simulateBlocks is simulate with blocks of another size.
func simulateBlocks(t testing.TB, encoding kvpublish.Encoding, drop func(uint64) bool, block, kvTokens int) *simulated {
	s := &simulated{t: t, encoding: encoding, drop: drop, block: block, kvTokens: kvTokens, rpc: newProxy(t), feed: newProxy(t), pub: newProxy(t), back: newProxy(t)}
	s.boot()
	t.Cleanup(func() { s.kill() })
	s.conn, s.feedConn = dialProxy(t, s.rpc), dialProxy(t, s.feed)
	return s
}

func (s *simulated) boot() {
	lis := listenLoopback(s.t)
	s.log = kvpublish.NewLog(s.keep)
	s.contents = &contents{log: s.log, held: map[uint64]bool{}}
	var err error
	s.server, err = grpcserver.Start(lis, grpcserver.Config{
		Engine: enginesim.Config{KVTokens: s.kvTokens, BlockSize: s.block, Listener: s.contents}, Virtual: true, KVEvents: s.log, KVHistory: true,
	})
	require.NoError(s.t, err)
	s.rpc.to(lis.Addr())
	s.feed.to(lis.Addr())
	if s.encoding == "" {
		return
	}
	c := kvpublish.Config{Events: listenLoopback(s.t), Replay: listenLoopback(s.t), Topic: "kv@sim", Encoding: s.encoding, Drop: s.drop}
	s.zmq = kvpublish.Publish(s.log, c)
	s.pub.to(c.Events.Addr())
	s.back.to(c.Replay.Addr())
}

func (s *simulated) kill() {
	s.server.Kill()
	if s.zmq != nil {
		s.zmq.Close()
	}
}

// cutEvents breaks every connection that carries events.
func (s *simulated) cutEvents() {
	for _, p := range []*proxy{s.feed, s.pub, s.back} {
		p.cut()
	}
}

// kvEvents is the engine's attribute.
func (s *simulated) kvEvents() string {
	if s.encoding == "" {
		return "grpc:vllm"
	}
	return "tcp://" + s.pub.addr() + "?topic=kv"
}

// kvEventsReplay is the engine's attribute of the same name.
func (s *simulated) kvEventsReplay() string {
	if s.encoding == "" {
		return ""
	}
	return "tcp://" + s.back.addr()
}

// replays reports whether the engine still has what a follower missed, for a follower that keeps what it knows. Over gRPC
// all events come again.
func (s *simulated) replays() bool { return s.encoding != "" }

// next is the next sequence number for a follower that has received all events.
func (s *simulated) next() uint64 {
	return s.log.Next()
}

// known is an index fed by events.
type known struct {
	index *kvindex.Index
	mu    sync.Mutex // guards the set and the slots
	ever  map[uint64]bool
	slots map[string]kvindex.Slot
}

// slot returns the slot of a replica, or a new slot if the contents are cleared.
func (k *known) slot(id string, cleared bool) kvindex.Slot {
	k.mu.Lock()
	defer k.mu.Unlock()
	slot, ok := k.slots[id]
	if ok && !cleared {
		return slot
	}
	if ok {
		k.index.Drop(slot)
	}
	if k.slots == nil {
		k.slots = make(map[string]kvindex.Slot)
	}
	k.slots[id] = k.index.Add(nil)
	return k.slots[id]
}

func (k *known) changed(changes []policy.CacheChange) {
	for _, c := range changes {
		slot := k.slot(c.Replica, c.Cleared)
		k.index.Remove(slot, c.Removed)
		k.index.Insert(slot, c.Stored)
		k.mu.Lock()
		for _, h := range c.Stored {
			k.ever[h] = true
		}
		k.mu.Unlock()
	}
}

// holds returns the index's contents for a replica.
func (k *known) holds(id string) map[uint64]bool {
	slot := k.slot(id, false)
	k.mu.Lock()
	defer k.mu.Unlock()
	held := map[uint64]bool{}
	var m kvindex.Matches
	for h := range k.ever {
		if k.index.Match([]uint64{h}, &m); m.Depth(slot) == 1 {
			held[h] = true
		}
	}
	return held
}

// eventWorld is a set of engines, and a manager that feeds an index with their events.
type eventWorld struct {
	t       *testing.T
	engines []*simulated
	known   *known
	manager *kvevents.Manager
	fleet   []policy.Attributes
	lossy   atomic.Bool // gRPC streams lose messages
}

// lossyConn loses every twentieth message of its streams while the world is lossy.
type lossyConn struct {
	grpc.ClientConnInterface
	world *eventWorld
	n     *atomic.Int64
}

// NewStream implements grpc.ClientConnInterface.
func (c *lossyConn) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.ClientConnInterface.NewStream(ctx, d, method, opts...)
	return &lossyStream{s, c}, err
}

type lossyStream struct {
	grpc.ClientStream
	conn *lossyConn
}

// RecvMsg implements grpc.ClientStream.
func (s *lossyStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && s.conn.n.Add(1)%20 == 0 && s.conn.world.lossy.Load() {
		err = s.ClientStream.RecvMsg(m)
	}
	return err
}

func newEventWorld(t *testing.T, engines []*simulated, o kvevents.Options) *eventWorld {
	w := &eventWorld{t: t, engines: engines, known: &known{index: kvindex.New(0), ever: map[uint64]bool{}}}
	o.Sink, o.Quiet = w.known.changed, 5*time.Millisecond
	o.Connect = func(_ context.Context, id string) (grpc.ClientConnInterface, error) {
		return &lossyConn{w.engine(id).feedConn, w, &w.engine(id).received}, nil
	}
	w.manager = kvevents.NewManager(o)
	t.Cleanup(w.manager.Close)
	for i, e := range engines {
		w.fleet = append(w.fleet, policy.Attributes{ID: fmt.Sprint(i), Address: e.rpc.addr(), KVEvents: e.kvEvents(), KVEventsReplay: e.kvEventsReplay()})
	}
	w.manager.SetFleet(w.fleet)
	return w
}

func (w *eventWorld) engine(id string) *simulated {
	i := slices.IndexFunc(w.fleet, func(a policy.Attributes) bool { return a.ID == id })
	return w.engines[i]
}

// load sends requests with shared prefixes to every engine. during is called in the middle.
func (w *eventWorld) load(seed uint64, requests int, during func()) {
	var all sync.WaitGroup
	for i, e := range w.engines {
		for half := range 2 {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(2*i+half)))
				for n := range requests {
					_ = e.ask(fmt.Sprintf("%d/%d/%d/%d", seed, i, half, n), randomPrompt(rng), 1+rng.IntN(40))
				}
			})
		}
	}
	during()
	all.Wait()
}

// randomPrompt is a path in a tree of blocks, and some tokens.
func randomPrompt(rng *rand.Rand) []uint32 {
	var tokens []uint32
	for depth := range uint32(1 + rng.IntN(10)) {
		branch := rng.Uint32N(3)
		for i := range uint32(16) {
			tokens = append(tokens, 1000*depth+100*branch+i)
		}
	}
	return tokens[:len(tokens)-rng.IntN(16)]
}

// ask sends one request; an engine that is being restarted fails it.
func (s *simulated) ask(id string, tokens []uint32, output int) error {
	n := uint32(output)
	stream, err := enginepb.NewVllmEngineClient(s.conn).Generate(context.Background(), &enginepb.GenerateRequest{
		RequestId: id, Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: tokens}},
		SamplingParams: &enginepb.SamplingParams{MaxTokens: &n},
	}, grpc.WaitForReady(true))
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// quiet waits until all published events have been applied.
func (w *eventWorld) quiet() []kvevents.Status {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		sts := w.manager.Status()
		if len(sts) != len(w.engines) {
			return false
		}
		for _, st := range sts {
			if want := w.engine(st.Replica).next(); st.Next != want && want > 1 {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)
	return w.manager.Status()
}

// exact checks that the index equals the engines' caches.
func (w *eventWorld) exact() []kvevents.Status {
	w.t.Helper()
	sts := w.quiet()
	for i, e := range w.engines {
		want := e.contents.copy()
		require.NotEmpty(w.t, want)
		require.Equal(w.t, want, w.known.holds(fmt.Sprint(i)), "engine %d: %+v", i, sts[i])
		require.Equal(w.t, len(want), sts[i].Blocks)
	}
	return sts
}
