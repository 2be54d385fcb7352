package tests

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/client"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// A mortal is an engine that dies in one of the ways of engines.
type mortal struct {
	*breaking
	server *grpc.Server

	mu      sync.Mutex
	dead    chan struct{} // closed when the core is dead or stands still
	how     error         // status of calls from then on; nil = they wait for the end of revived
	revived chan struct{}
	waiting atomic.Int64 // calls that have waited
}

// step is called before each message of a stream.
func (m *mortal) step(ctx context.Context) error {
	m.mu.Lock()
	dead, how, revived := m.dead, m.how, m.revived
	m.mu.Unlock()
	select {
	case <-dead:
	default:
		return nil
	}
	if how != nil {
		return how
	}
	m.waiting.Add(1)
	select {
	case <-revived:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// dies has the calls under way, and all later ones, end with a status, or wait if there is none.
func (m *mortal) dies(how error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.how, m.revived = how, make(chan struct{})
	close(m.dead)
}

// revive ends what dies began.
func (m *mortal) revive() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.revived)
	m.dead = make(chan struct{})
}

func (m *mortal) serve(l net.Listener) {
	m.server = grpc.NewServer()
	enginepb.RegisterVllmEngineServer(m.server, m.breaking)
	vllmpb.RegisterInferenceServer(m.server, &breakingInference{b: m.breaking})
	sglangpb.RegisterSglangSchedulerServer(m.server, &breakingSGLang{b: m.breaking})
	go func() { _ = m.server.Serve(l) }()
}

// deaths are how engines die, as clients see it. Each returns when the engine is well again, or does not come back.
var deaths = map[string]func(t *testing.T, m *mortal, calls func()){
	"kill of the server": func(_ *testing.T, m *mortal, _ func()) { m.server.Stop() },
	"kill of the core": func(_ *testing.T, m *mortal, _ func()) {
		m.dies(status.Error(codes.Internal, "EngineCore encountered an issue. See stack trace (above) for the root cause."))
	},
	"termination": func(_ *testing.T, m *mortal, calls func()) {
		m.dies(status.Error(codes.Canceled, "Cancelling all calls"))
		calls()
		m.server.Stop()
	},
	"termination of an unavailable server": func(_ *testing.T, m *mortal, calls func()) {
		m.dies(status.Error(codes.Unavailable, "the server is shutting down"))
		calls()
		m.server.Stop()
	},
	"a core that stands still": func(t *testing.T, m *mortal, _ func()) {
		m.dies(nil)
		eventually(t, "calls wait for it", func() bool { return m.waiting.Load() > 1 })
		m.revive()
	},
	"a restart": func(t *testing.T, m *mortal, calls func()) {
		m.server.Stop()
		calls()
		m.serve(listenAt(t, m.addr))
	},
}

// However an engine dies, no call fails and every output is that of an undisturbed run, with the defaults of client.New.
func TestNoCallFailsWhenAnEngineDies(t *testing.T) {
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			var all []*mortal
			target := "warmpath:///"
			for i := range 3 {
				l := listenLoopback(t)
				m := &mortal{breaking: &breaking{addr: l.Addr().String()}, dead: make(chan struct{})}
				m.end = func(ctx context.Context, _ int) error { return m.step(ctx) }
				m.serve(l)
				t.Cleanup(func() { m.server.Stop() })
				if all = append(all, m); i > 0 {
					target += ","
				}
				target += m.addr
			}
			cc := dial(t, target)
			for _, m := range all {
				eventually(t, "connected", func() bool {
					return receive(client.WithPin(deadline(t), m.addr), cc, engineStream("x", 1), nothing).err == io.EOF
				})
			}
			const workers, most = 12, 60
			var ended atomic.Int64
			var quit atomic.Bool
			var work sync.WaitGroup
			ctx := metadata.AppendToOutgoingContext(deadline(t), "of", "the load")
			kinds := []string{"VllmEngine", "Inference", "SglangScheduler"}
			for w := range workers {
				work.Go(func() {
					for i := 0; !quit.Load(); i++ {
						id := fmt.Sprint(w, " ", i)
						var ids []uint32
						var d client.Decision
						got := receive(client.WithDecision(ctx, &d), cc, streamsOf[kinds[(w+i)%3]](id, most), func(m proto.Message) {
							ids = append(ids, newTokens(m)...)
						})
						if got.err != io.EOF || !checkOutput(id, ids, most) {
							t.Errorf("%s: %v after %d tokens, %d attempts, resumed %d times", id, got.err, len(ids), d.Attempts, d.Resumed)
						}
						ended.Add(1)
					}
				})
			}
			calls := func() {
				before := ended.Load()
				eventually(t, "calls go on", func() bool { return ended.Load() >= before+40 })
			}
			calls()
			victim := slices.MaxFunc(all, func(a, b *mortal) int { return cmp.Compare(a.calls.Load(), b.calls.Load()) })
			die(t, victim, calls)
			calls()
			quit.Store(true)
			work.Wait()
			require.Positive(t, ended.Load())
		})
	}
}
