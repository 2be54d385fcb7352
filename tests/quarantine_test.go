package tests

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/lab/faultproxy"
)

// fragile is a set of replicas behind proxies that can reset all connections at once.
type fragile struct {
	*testing.T
	stub    testpb.TestServiceClient
	proxies []*faultproxy.Proxy
	entered atomic.Int64  // calls that have arrived
	held    chan struct{} // closed = calls are answered
	under   sync.WaitGroup
}

func startFragile(t *testing.T, n int) *fragile {
	f := &fragile{T: t, held: make(chan struct{})}
	at := "warmpath:///"
	for i := range n {
		r := start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			f.entered.Add(1)
			select {
			case <-f.held:
				return s.Send(answer("done"))
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}})
		p, err := faultproxy.Listen(t.Context(), r.addr)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		f.proxies = append(f.proxies, p)
		if i > 0 {
			at += ","
		}
		at += p.Addr()
	}
	f.stub = testpb.NewTestServiceClient(dial(t, at, client.WithConfig(
		config(`{"round_robin":{}}`, `"max_attempts":1`, `"ejection":{"failures":"off"}`))))
	return f
}

// ask makes a call on a replica, once that is connected.
func (f *fragile) ask(i int, text string) error {
	ctx := client.WithPin(deadline(f.T), f.proxies[i].Addr())
	eventually(f.T, "connection", func() bool {
		_, err := f.stub.UnaryCall(ctx, simple(""))
		return err == nil
	})
	_, err := read(f.stub.StreamingOutputCall(ctx, prompt(text)))
	return err
}

// hold leaves a call under way on a replica.
func (f *fragile) hold(i int, text string) {
	before := f.entered.Load()
	f.under.Go(func() { _ = f.ask(i, text) })
	eventually(f.T, "it has come", func() bool { return f.entered.Load() > before })
}

// reset breaks the connections to these replicas and waits until the calls under way have failed.
func (f *fragile) reset(which ...int) {
	for _, i := range which {
		f.proxies[i].Reset()
	}
	f.under.Wait()
}

// Issue 12.32: one network reset of all connections while a prompt is under way on two replicas quarantines no
// prompt.
func TestNetworkResetQuarantinesNoPrompt(t *testing.T) {
	f := startFragile(t, 3)
	var prompt string
	within(t, time.Second, func() { // what breaks later has another cause
		prompt += "healthy "
		f.hold(0, prompt)
		f.hold(1, prompt)
		f.reset(0, 1, 2)
	})
	close(f.held)
	require.NoError(t, f.ask(2, prompt))
}

// Issue 12.32: connections that break under several prompts at once quarantine none of them.
func TestBreakBesideOtherPromptsQuarantinesNoPrompt(t *testing.T) {
	f := startFragile(t, 3)
	for i := range 2 {
		for n := range 3 {
			f.hold(i, fmt.Sprint("healthy ", n))
		}
		f.reset(i)
	}
	close(f.held)
	for n := range 3 {
		require.NoError(t, f.ask(2, fmt.Sprint("healthy ", n)))
	}
}

// A prompt that crashes one replica after the other, alone on each, is quarantined.
func TestPromptThatBreaksReplicasIsQuarantined(t *testing.T) {
	f := startFragile(t, 3)
	for i := range 2 {
		f.hold(i, "the killer")
		f.reset(i)
	}
	close(f.held)
	require.ErrorIs(t, f.ask(2, "the killer"), client.ErrQuarantined)
	require.NoError(t, f.ask(2, "healthy"))
}
