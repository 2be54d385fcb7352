package tests

import (
	"io"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
	servers "github.com/warmpath/warmpath/internal/lookaside"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// An observer watches a look-aside server, and has no reservations itself.
type observer struct {
	mu      sync.Mutex // guards what follows
	address map[uint32]string
	ongoing map[string]int // by address
	stale   int            // number of replicas of unknown load
}

func observe(t *testing.T, at string) *observer {
	t.Helper()
	cc, err := grpc.NewClient(at, insecureOption())
	require.NoError(t, err)
	stream, err := warmpathv1.NewRoutingServiceClient(cc).WatchReplicas(deadline(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{Deployment: "chat", ClientId: "observer", Load: true}}))
	o := &observer{address: map[uint32]string{}, ongoing: map[string]int{}}
	ended := make(chan struct{})
	t.Cleanup(func() {
		require.NoError(t, cc.Close())
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			o.take(m)
		}
	}()
	return o
}

func (o *observer) take(m *warmpathv1.WatchReplicasResponse) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range m.GetFleet().GetReplicas() {
		o.address[r.GetNumber()] = r.GetAddress()
	}
	u := m.GetLoad()
	if u.GetSnapshot() {
		clear(o.ongoing)
	}
	for i, n := range u.GetLoads().GetReplicas() {
		o.ongoing[o.address[n]] = int(u.GetLoads().GetOngoing()[i])
	}
	maps.DeleteFunc(o.ongoing, func(_ string, n int) bool { return n == 0 })
	if u.GetStaleSet() {
		o.stale = len(u.GetStale())
	}
}

// sees reports whether the server has reports of all clients, and their loads sum up to ongoing.
func (o *observer) sees(ongoing map[string]int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stale == 0 && maps.Equal(o.ongoing, ongoing)
}

// When the server that clients follow is killed, the standby has the sums of their loads. Each client reports all of
// its load, in mode broadcast and in mode central. In central mode the report includes what the dead server had
// reserved for it.
func TestStandbyHasTheReservations(t *testing.T) {
	for _, mode := range []string{"broadcast", "central"} {
		t.Run(mode, func(t *testing.T) {
			rs := replicas(t, 3)
			end := make(chan struct{})
			for _, r := range rs {
				r.stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
					if err := s.Send(answer("x")); err != nil {
						return err
					}
					select {
					case <-end:
					case <-s.Context().Done():
					}
					return nil
				}
			}
			deployment := strings.Replace(centralised(`{kv_aware: {}}`, rs), "mode: central", "mode: "+mode, 1)
			kills := map[string]func(){}
			var addresses []string
			for range 2 {
				at, kill := lookasideWith(t, "", deployment)
				kills[at] = kill
				addresses = append(addresses, at)
			}
			ranked := servers.Rank(addresses, "chat")
			before, after := observe(t, ranked[0]), observe(t, ranked[1])
			held := map[string]int{}
			var streams []grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]
			for i := range 4 {
				cc := dial(t, "warmpath://"+addresses[0]+","+addresses[1]+"/chat")
				connected(t, cc, rs)
				if mode == "central" {
					untilCentral(t, cc)
				}
				for range 2 + i {
					var d client.Decision
					s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(client.WithDecision(deadline(t), &d), prompt("x"))
					require.NoError(t, err)
					_, err = s.Recv()
					require.NoError(t, err)
					require.Equal(t, mode == "central", d.Reason == "central")
					held[d.Replica]++
					streams = append(streams, s)
				}
			}
			eventually(t, "the first server has the loads", func() bool { return before.sees(held) })
			eventually(t, "the second server has none", func() bool { return after.sees(map[string]int{}) })
			kills[ranked[0]]()
			eventually(t, "the second server has the loads", func() bool { return after.sees(held) })
			close(end)
			for _, s := range streams {
				_, err := s.Recv()
				require.ErrorIs(t, err, io.EOF)
			}
			eventually(t, "nothing is reserved", func() bool { return after.sees(map[string]int{}) })
		})
	}
}
