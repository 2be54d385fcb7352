package tests

import (
	"context"
	"log/slog"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
	modelserver "github.com/warmpath/warmpath/server/replica"
)

// full starts a replica whose only room another client occupies until the test ends, and a replica with room. reached
// counts the calls that the full one admits.
func full(t *testing.T) (rs []*replica, reached *atomic.Int64) {
	t.Helper()
	m, err := modelserver.New(modelserver.Config{Replica: policy.Attributes{MaxOngoing: 1}})
	require.NoError(t, err)
	entered, reached := make(chan struct{}), new(atomic.Int64)
	busy := start(t, &replica{
		unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			reached.Add(1)
			return &testpb.SimpleResponse{}, nil
		},
		duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			close(entered)
			<-s.Context().Done()
			return s.Context().Err()
		},
	}, m.ServerOptions()...)
	other, err := grpc.NewClient("passthrough:///"+busy.addr, insecureOption())
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })
	_, err = testpb.NewTestServiceClient(other).FullDuplexCall(deadline(t))
	require.NoError(t, err)
	<-entered
	return []*replica{busy, start(t, &replica{})}, reached
}

func TestRefusedCallsGoToAnother(t *testing.T) {
	rs, reached := full(t)
	cc := dial(t, target(rs...), roundRobin())
	stub := testpb.NewTestServiceClient(cc)
	eventually(t, "connection to the full replica", func() bool { return waitsFor(t, stub, rs[0]) })
	connected(t, cc, rs[1:])
	eventually(t, "round robin meets the full one", func() bool {
		var d client.Decision
		reply, err := stub.UnaryCall(client.WithDecision(deadline(t), &d), simple(""))
		require.NoError(t, err)
		require.Equal(t, rs[1].addr, reply.Username)
		return d.Attempts > 1
	})
	require.Zero(t, reached.Load())
}

// waitsFor reports whether a call that only this replica may serve reaches it and has to wait, since it is full.
func waitsFor(t *testing.T, stub testpb.TestServiceClient, full *replica) bool {
	_, err := stub.UnaryCall(client.WithPin(deadlineOf(50*time.Millisecond), full.addr), simple(""))
	require.Error(t, err)
	return status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.ResourceExhausted
}

// The queue length in a refusal becomes the replica's load.
func TestRefusalsReportTheLoad(t *testing.T) {
	rs, _ := full(t)
	l, config := listening("listening_refused", policy.AnyRank)
	cc := dial(t, target(rs...), client.WithConfig(`{"policy":`+config+`}`))
	stub := testpb.NewTestServiceClient(cc)
	eventually(t, "the load of the full one is known", func() bool {
		if !waitsFor(t, stub, rs[0]) { // it is not connected yet
			return false
		}
		_, err := stub.UnaryCall(deadline(t), simple(""))
		require.NoError(t, err)
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.ongoing[rs[0].addr] == 1 && l.ongoing[rs[1].addr] == 0
	})
}

// A replica that drains under load loses no call, and gets none afterwards.
func TestDrainingReplicaLosesNoCall(t *testing.T) {
	rs := replicas(t, 2)
	m, err := modelserver.New(modelserver.Config{DrainNotice: -1})
	require.NoError(t, err)
	lis := listenLoopback(t)
	leaving := &replica{addr: lis.Addr().String()}
	gs := grpc.NewServer(m.ServerOptions()...)
	testpb.RegisterTestServiceServer(gs, leaving)
	ctx, drain := context.WithCancel(deadline(t))
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(ctx, gs, lis) }()
	defer gs.Stop()
	rs = append(rs, leaving)
	cc := dial(t, target(rs...), roundRobin())
	connected(t, cc, rs)

	stub := testpb.NewTestServiceClient(cc)
	var all sync.WaitGroup
	var stopped atomic.Bool
	var answered, lost atomic.Int64
	for range 4 {
		all.Go(func() {
			for !stopped.Load() {
				if _, err := stub.UnaryCall(deadline(t), simple("")); err != nil {
					lost.Add(1)
				}
				answered.Add(1)
			}
		})
	}
	eventually(t, "it has work", func() bool { return leaving.calls.Load() > 20 })
	drain()
	require.NoError(t, <-ended)
	last, after := leaving.calls.Load(), answered.Load()
	eventually(t, "others go on", func() bool { return answered.Load() > after+50 })
	stopped.Store(true)
	all.Wait()
	require.Zero(t, lost.Load())
	require.Equal(t, last, leaving.calls.Load())
}

// registry starts a look-aside server where replicas register.
func registry(t *testing.T, address string) (s *server.Server, at string) {
	t.Helper()
	c, err := server.ParseConfig([]byte(`deployments: {chat: {register: true, policy: {round_robin: {}}}}`))
	require.NoError(t, err)
	s, err = server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	lis := listenAt(t, address)
	go func() { _ = s.Serve(lis) }() // ends with Close
	return s, lis.Addr().String()
}

// A replica registers with the look-aside server, registers again when the server restarts without state, and
// deregisters at its end.
func TestReplicaRegistersWithTheServer(t *testing.T) {
	first, at := registry(t, freeAddr(t))
	var log logged
	m, err := modelserver.New(modelserver.Config{
		Servers: []string{at}, DialOptions: []grpc.DialOption{insecureOption()}, DrainNotice: -1, Logger: log.logger(),
	})
	require.NoError(t, err)
	lis := listenLoopback(t)
	ctx, drain := context.WithCancel(deadline(t))
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(ctx, grpc.NewServer(m.ServerOptions()...), lis) }()
	cc, err := grpc.NewClient("passthrough:///"+at, insecureOption())
	require.NoError(t, err)
	defer cc.Close()
	chosen := func() string {
		a, err := warmpathv1.NewRoutingServiceClient(cc).ChooseReplica(deadline(t), &warmpathv1.ChooseReplicaRequest{})
		if err != nil {
			require.Equal(t, codes.Unavailable, status.Code(err))
		}
		return a.GetReplica().GetAddress()
	}
	eventually(t, "it is known", func() bool { return chosen() == lis.Addr().String() })
	first.Close()
	second, _ := registry(t, at)
	eventually(t, "it is known again", func() bool { return chosen() == lis.Addr().String() })
	drain()
	require.NoError(t, <-ended)
	if late := "could not be notified that the replica leaves"; !strings.Contains(log.String(), late) { // within a second
		require.Empty(t, chosen())
	}
	second.Close()
}

func TestReplicaPageNamesEveryField(t *testing.T) {
	var fields, documented []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[modelserver.Config]()) {
		fields = append(fields, f.Name)
	}
	for _, row := range table(section(t, "docs/replica.md", "## The config")) {
		documented = append(documented, strings.Trim(row[0], "`"))
	}
	require.ElementsMatch(t, fields, documented)
}

// A model server links no client packages, and the library registers no proto names that the model server may also
// have.
func TestModelServersLinkLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/server/replica").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	for _, foreign := range []string{"/client", "/resolver", "/balancer", "/server", "/internal/call"} {
		require.NotContains(t, deps, module+foreign)
	}
	for _, dep := range deps {
		require.False(t, strings.HasPrefix(dep, "github.com/cncf/xds/"), dep)
	}
}
