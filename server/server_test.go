package server

import (
	"bufio"
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Shutdown ends streams, and lets calls under way end.
func TestShutdown(t *testing.T) {
	f := start(t, several)
	w := f.watch(t, &warmpathv1.WatchStart{Deployment: "chat", ClientId: "x"})
	w.next()
	stream, err := f.pb.ChooseReplicas(soon(t))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Deployment: "chat"}}))
	_, err = stream.Recv()
	require.NoError(t, err)
	require.NoError(t, f.Shutdown(soon(t)))
	_, err = w.stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorIs(t, f.Update(parse(t, quiet)), grpc.ErrServerStopped)
	f.Close()
}

func TestShutdownIsNotDelayed(t *testing.T) {
	f := start(t, quiet)
	_, err := f.pb.WatchReplicas(soon(t)) // and sends nothing
	require.NoError(t, err)
	f.choose(t, &warmpathv1.ChooseReplicaRequest{}) // so that the server has seen the watch
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, f.Shutdown(ctx), context.Canceled)
}

// A target's addresses are replicas; when it fails or is empty the last ones stay.
func TestTarget(t *testing.T) {
	m := manual.NewBuilderWithScheme("fleet")
	resolver.Register(m)
	state := func(addresses ...string) (s resolver.State) {
		for _, a := range addresses {
			s.Addresses = append(s.Addresses, resolver.Address{Addr: a, ServerName: "name-of-" + a})
		}
		return s
	}
	m.InitialState(state("a:1", "b:1", "a:1"))
	f := start(t, `
load_interval: 10s
deployments:
  chat: {target: "fleet:///x", replicas: [{id: fixed, address: "b:1"}]}`)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x"})
	known := make(map[uint32]*warmpathv1.Replica)
	until := func(want ...string) {
		t.Helper()
		for {
			var ids []string
			for _, r := range f.deploymentMembers("chat") {
				ids = append(ids, r.ID)
			}
			if len(ids) == len(want) {
				require.ElementsMatch(t, want, ids)
				return
			}
			apply(known, w.next().GetFleet())
		}
	}
	until("fixed", "a:1")
	a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Pinned: "a:1"})
	require.Equal(t, "name-of-a:1", a.GetReplica().GetServerName())
	m.UpdateState(state("a:1", "c:1", "d:1"))
	until("fixed", "a:1", "c:1", "d:1")
	m.UpdateState(state())
	m.CC().ReportError(context.DeadlineExceeded)
	m.UpdateState(state("d:1"))
	until("fixed", "d:1")
}

func (f *fixture) deploymentMembers(name string) []*member {
	d := f.deployment(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.roster.order
}

// Garbage is answered with an error; other calls go on.
func TestGarbage(t *testing.T) {
	f := start(t, quiet)
	for _, method := range []string{"ChooseReplica", "ReportLife", "Register", "ChooseReplicas", "WatchReplicas", "Nothing"} {
		var out []byte
		err := f.conn.Invoke(soon(t), "/warmpath.v1.RoutingService/"+method, []byte("\xff\xff\xff garbage"), &out, grpc.ForceCodec(raw{}))
		require.Error(t, err, method)
		require.NotContains(t, []codes.Code{codes.OK, codes.DeadlineExceeded}, status.Code(err), method)
	}
	f.choose(t, &warmpathv1.ChooseReplicaRequest{})
}

// raw sends bytes unchanged.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = data
	return nil
}

// Intervals end by themselves, and load is broadcast.
func TestBeat(t *testing.T) {
	f := start(t, "load_interval: 10ms\ndeployments: {chat: {replicas: [{address: 'a:1'}]}}")
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x", Load: true})
	w.report(1, true, loadOf([3]int{1, 2, 3}))
	deadline := time.Now().Add(20 * time.Second)
	for counted := uint64(0); counted == 0; {
		require.True(t, time.Now().Before(deadline))
		counted = w.next().GetLoad().GetCounted()
	}
}

// A server that is shut down before it serves ends as one that has served.
func TestShutdownBeforeServe(t *testing.T) {
	c, err := ParseConfig([]byte("deployments: {chat: {register: true}}"))
	require.NoError(t, err)
	s, err := New(c, Options{})
	require.NoError(t, err)
	require.NoError(t, s.Shutdown(t.Context()))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, s.Serve(lis))
}

// A request over HTTP that does not end delays no gRPC call: gRPC connections end at once.
func TestShutdownOfBothEndpoints(t *testing.T) {
	f := start(t, "http: {listen: '127.0.0.1:0', read_timeout: 1h}\n"+quiet)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- f.ServeRoutes(lis) }()
	slow, err := net.Dial("tcp", lis.Addr().String())
	require.NoError(t, err)
	defer slow.Close()
	_, err = slow.Write([]byte("POST /internal/route HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n"))
	require.NoError(t, err)
	line, err := bufio.NewReader(slow).ReadString('\n') // its body is being read
	require.NoError(t, err)
	require.Contains(t, line, "100 Continue")
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x"})
	w.next()
	ended := make(chan error, 1)
	go func() { ended <- f.Shutdown(soon(t)) }()
	require.NoError(t, <-f.served)
	f.served <- nil // to the end of the fixture
	require.Empty(t, ended)
	_, err = slow.Write([]byte(`          `))
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.NoError(t, <-served)
}
