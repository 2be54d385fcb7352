package tests

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// sleeps waits until the channel is idle: its balancer is closed.
func sleeps(t testing.TB, cc *grpc.ClientConn) {
	t.Helper()
	ctx := deadline(t)
	for s := cc.GetState(); s != connectivity.Idle; s = cc.GetState() {
		require.True(t, cc.WaitForStateChange(ctx, s), "the channel goes idle")
	}
}

// dialled opens a channel of one of two kinds. All channels of a kind share one list of options.
func dialled(t testing.TB, how, target string, own []client.Option, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	more = append([]grpc.DialOption{insecureOption(), grpc.WithNoProxy()}, more...)
	if how == "New" {
		for _, o := range own {
			more = append(more, o)
		}
		cc, err := client.New(target, more...)
		require.NoError(t, err)
		return cc
	}
	cc, err := grpc.NewClient(target, append(client.DialOptions(own...), more...)...)
	require.NoError(t, err)
	return cc
}

// A channel keeps its index while it is idle: prefixes are still found where spilling sent them, although the
// rendezvous order names other replicas.
func TestIndexSurvivesIdleness(t *testing.T) {
	for _, how := range []string{"New", "DialOptions"} {
		t.Run(how, func(t *testing.T) {
			rs := replicas(t, 4)
			m := newMeter(t)
			cc := dialled(t, how, target(rs...), []client.Option{client.WithConfig(config(`{"kv_aware":{}}`)), m.option.(client.Option)},
				grpc.WithIdleTimeout(200*time.Millisecond))
			defer func() { require.NoError(t, cc.Close()) }()
			stub := testpb.NewTestServiceClient(cc)
			for _, r := range rs {
				eventually(t, "connection", func() bool {
					_, err := stub.UnaryCall(client.WithPin(deadline(t), r.addr), simple(""))
					return err == nil
				})
			}
			text := func(i int) string { return strings.Repeat(fmt.Sprintf("document %d. ", i), 100) }
			// Exclusion, not the rendezvous order, decides where each document goes.
			home := make(map[int]string)
			for i := range 12 {
				var d client.Decision
				ctx := client.WithDecision(deadline(t), &d)
				_, err := stub.UnaryCall(client.WithExclude(ctx, rs[0].addr, rs[1].addr), simple(text(i)))
				require.NoError(t, err)
				home[i] = d.Replica
			}
			for round := range 2 {
				sleeps(t, cc)
				// Wake the channel up, keep it awake, and wait for all connections: a call goes to a connected
				// replica.
				awake, err := stub.FullDuplexCall(client.WithPin(deadline(t), rs[0].addr), grpc.WaitForReady(true))
				require.NoError(t, err)
				for _, r := range rs {
					eventually(t, "connection", func() bool {
						_, err := stub.UnaryCall(client.WithPin(deadline(t), r.addr), simple(""))
						return err == nil
					})
				}
				for i := range 12 {
					var d client.Decision
					_, err := stub.UnaryCall(client.WithDecision(deadline(t), &d), simple(text(i)))
					require.NoError(t, err)
					require.Equal(t, policy.ReasonPrefixMatch, d.Reason, "round %d", round)
					require.Equal(t, home[i], d.Replica)
				}
				require.NoError(t, awake.CloseSend())
				_, err = awake.Recv()
				require.ErrorIs(t, err, io.EOF)
			}
			require.Zero(t, m.ongoing(t))
			require.Positive(t, m.sum(t, "warmpath.index.bytes"), "observed through the channel's own meter")
		})
	}
}

// Calls that start while the channel becomes idle or wakes up do not fail or hang, and leave no reservation.
func TestCallsAcrossIdleness(t *testing.T) {
	for _, how := range []string{"New", "DialOptions"} {
		t.Run(how, func(t *testing.T) {
			rs := replicas(t, 2)
			m := newMeter(t)
			cc := dialled(t, how, target(rs...), []client.Option{client.WithConfig(config(`{"consistent_hash":{}}`, `"max_ongoing_requests":2`)), m.option.(client.Option)},
				grpc.WithIdleTimeout(time.Millisecond))
			defer func() { require.NoError(t, cc.Close()) }()
			stub := testpb.NewTestServiceClient(cc)
			errs := make(chan error)
			const workers = 4
			for range workers {
				go func() {
					var failed error
					for i := range 40 {
						if i%8 == 0 {
							cc.WaitForStateChange(deadlineOf(50*time.Millisecond), connectivity.Ready)
						}
						if _, err := stub.UnaryCall(deadlineOf(time.Minute), simple(fmt.Sprint(i))); err != nil {
							failed = err
						}
						if _, err := read(stub.StreamingOutputCall(deadlineOf(time.Minute), prompt("x"))); err != nil {
							failed = err
						}
					}
					errs <- failed
				}()
			}
			for range workers {
				require.NoError(t, <-errs)
			}
			eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
		})
	}
}

// One list of options serves several channels, which share nothing.
func TestOneListManyChannels(t *testing.T) {
	a, b := replicas(t, 2), replicas(t, 2)
	opts := append(client.DialOptions(client.WithConfig(config(`{"round_robin":{}}`))), insecureOption(), grpc.WithNoProxy())
	for _, rs := range [][]*replica{a, b, a} {
		cc, err := grpc.NewClient(target(rs...), opts...)
		require.NoError(t, err)
		defer func() { require.NoError(t, cc.Close()) }()
		connected(t, cc, rs)
		for range 4 {
			var d client.Decision
			got := where(t, client.WithDecision(deadline(t), &d), cc, "")
			require.Contains(t, []string{rs[0].addr, rs[1].addr}, got)
			require.Equal(t, got, d.Replica)
		}
	}
}

// A closed channel is collected with its index, even while its list of options is in use.
func TestClosedChannelsAreCollected(t *testing.T) {
	rs := replicas(t, 2)
	own := []client.Option{client.WithConfig(config(`{"kv_aware":{}}`))}
	list := append(client.DialOptions(own...), insecureOption(), grpc.WithNoProxy())
	open := map[string]func() (*grpc.ClientConn, error){
		"New":         func() (*grpc.ClientConn, error) { return client.New(target(rs...), own[0], insecureOption()) },
		"DialOptions": func() (*grpc.ClientConn, error) { return grpc.NewClient(target(rs...), list...) },
	}
	for how, open := range open {
		t.Run(how, func(t *testing.T) {
			ref := func() weak.Pointer[grpc.ClientConn] {
				cc, err := open()
				require.NoError(t, err)
				where(t, context.Background(), cc, strings.Repeat("x", 1000))
				_, err = read(testpb.NewTestServiceClient(cc).StreamingOutputCall(context.Background(), prompt("x")))
				require.NoError(t, err)
				require.NoError(t, cc.Close())
				return weak.Make(cc)
			}()
			eventually(t, "the channel is collected", func() bool {
				runtime.GC()
				return ref.Value() == nil
			})
		})
	}
	runtime.KeepAlive(list)
}
