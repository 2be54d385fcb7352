//go:build unix

package tests

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/race"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// largest is how many bytes of events fit into a message of the largest size allowed.
const largest = kvevents.MaxMessage - 64

// batchOf is a batch of encoded events, as many as fit.
func batchOf(event func(n int) []byte) []byte {
	var events []byte
	n := 0
	for next := event(0); len(events)+len(next) < largest; next = event(n) {
		events = append(events, next...)
		n++
	}
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 1)
	return append(msgp.AppendArrayHeader(b, uint32(n)), events...)
}

// encodedStore is a BlockStored of blocks of one token.
func encodedStore(parent any, hashes ...uint64) []byte {
	b := msgp.AppendString(msgp.AppendArrayHeader(nil, 5), "BlockStored")
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = msgp.AppendUint64(b, h)
	}
	if p, ok := parent.(uint64); ok {
		b = msgp.AppendUint64(b, p)
	} else {
		b = msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for i := range hashes {
		b = append(b, byte(i)&127)
	}
	return append(b, 1)
}

// encodedRemove is a BlockRemoved.
func encodedRemove(hashes ...uint64) []byte {
	b := msgp.AppendString(msgp.AppendArrayHeader(nil, 2), "BlockRemoved")
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = msgp.AppendUint64(b, h)
	}
	return b
}

// largeMessages are messages of the largest size allowed, each with as much work as there can be of its kind.
func largeMessages() map[string][]byte {
	rng := rand.New(rand.NewPCG(1, 29))
	hashes := func(n int, hash func() uint64) []uint64 {
		all := make([]uint64, n)
		for i := range all {
			all[i] = hash()
		}
		return all
	}
	next := uint64(1 << 20)
	waiting := encodedStore(uint64(1), hashes(1<<14, func() uint64 { next++; return next })...)
	return map[string][]byte{
		"removed while they wait": batchOf(func(n int) []byte {
			if n == 0 {
				return waiting
			}
			return encodedRemove(hashes(1<<12, func() uint64 { return 1<<20 + rng.Uint64N(1<<14) })...)
		}),
		"removed and unknown": batchOf(func(int) []byte {
			return encodedRemove(hashes(1<<20, func() uint64 { return rng.Uint64N(128) })...)
		}),
		"unknown parents": batchOf(func(int) []byte { return encodedStore(rng.Uint64(), rng.Uint64()) }),
		"small blocks":    batchOf(func(int) []byte { return encodedStore(nil, hashes(1000, rng.Uint64)...) }),
	}
}

// stopwatch measures a duration by the clock, or by the process's own time if the machine is busy.
type stopwatch struct {
	began time.Time
	used  time.Duration
}

func startWatch() stopwatch { return stopwatch{time.Now(), processTime()} }

func (s stopwatch) elapsed() time.Duration {
	return min(time.Since(s.began), processTime()-s.used)
}

func processTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// largeWorld is a server that follows one engine.
type largeWorld struct {
	server *server.Server
	config *server.Config
	status warmpathv1.StatusServiceClient
	engine *zmqEngine
}

func newLargeWorld(t *testing.T) *largeWorld {
	t.Helper()
	w := &largeWorld{engine: newZMQEngine(t)}
	var err error
	w.config, err = server.ParseConfig([]byte("deployments:\n  chat:\n    policy: {kv_aware: {}}\n    replicas:\n" +
		"    - {id: r0, address: '127.0.0.1:1', kv_events: 'tcp://" + w.engine.address() + "'}\n"))
	require.NoError(t, err)
	w.server, err = server.New(w.config, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	lis := listenLoopback(t)
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	w.status = warmpathv1.NewStatusServiceClient(conn)
	t.Cleanup(func() {
		conn.Close()
		w.server.Close()
		require.NoError(t, <-served)
	})
	w.engine.subscribed(1)
	return w
}

// applied is how many messages of the engine are applied.
func (w *largeWorld) applied(t *testing.T) uint64 {
	t.Helper()
	a, err := w.status.GetStatus(t.Context(), &warmpathv1.GetStatusRequest{})
	require.NoError(t, err)
	return a.GetDeployments()[0].GetReplicas()[0].GetEvents().GetMessages()
}

// times are the durations of operations while large messages are applied.
type times struct{ message, status, update, close time.Duration }

// measure publishes three large messages and closes the server when the first one is applied.
func (w *largeWorld) measure(t *testing.T, payload []byte) (d times) {
	t.Helper()
	message := startWatch()
	for range 3 {
		w.engine.publish("kv", payload)
	}
	for w.applied(t) == 0 {
		watch := startWatch()
		w.applied(t)
		d.status = max(d.status, watch.elapsed())
		watch = startWatch()
		require.NoError(t, w.server.Update(w.config))
		d.update = max(d.update, watch.elapsed())
		require.Less(t, message.elapsed(), time.Minute, "the message is still worked on")
	}
	d.message = message.elapsed()
	watch := startWatch()
	w.server.Close()
	d.close = watch.elapsed()
	return d
}

// Issue 12.29: a KV-event message of the largest size allowed, whatever its content, is applied in seconds. GetStatus,
// Update and Close do not wait for it: on a slow machine, too, they take less than half of its time.
func TestLargeKVEventMessages(t *testing.T) {
	for name, payload := range largeMessages() {
		t.Run(name, func(t *testing.T) {
			require.Greater(t, len(payload), largest/2)
			var d times
			for range 3 { // the machine may be busy
				d = newLargeWorld(t).measure(t, payload)
				others := max(race.Of(100*time.Millisecond, time.Second), d.message/2)
				if d.message <= race.Of(10*time.Second, time.Minute) && max(d.status, d.update, d.close) <= others {
					return
				}
			}
			require.Fail(t, "too slow", "%+v", d)
		})
	}
}

// Issue 12.29: a channel closes while a large message is applied.
func TestLargeKVEventMessageAndClose(t *testing.T) {
	payload := largeMessages()["removed while they wait"]
	var took time.Duration
	for range 3 {
		e := newZMQEngine(t)
		conn, err := client.New("warmpath:///127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{"kv_aware":{}},"kv_events":"tcp://%s"}}]}`, e.address())))
		require.NoError(t, err)
		conn.Connect()
		e.subscribed(1)
		for range 3 {
			e.publish("kv", payload)
		}
		watch := startWatch()
		require.NoError(t, conn.Close())
		if took = watch.elapsed(); took <= race.Of(100*time.Millisecond, 500*time.Millisecond) {
			return
		}
	}
	require.Fail(t, "the channel does not close", "%v", took)
}
