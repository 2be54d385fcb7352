package server

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A client with too many streams waits for its own; other clients are served.
func TestStreamsAreBounded(t *testing.T) {
	f := start(t, quiet)
	greedy, err := grpc.NewClient(f.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer greedy.Close()
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	for range maxStreams {
		stream, err := warmpathv1.NewRoutingServiceClient(greedy).ChooseReplicas(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Mode: query}}))
		_, err = stream.Recv()
		require.NoError(t, err)
	}
	last := make(chan error, 1)
	waiting, leave := context.WithCancel(ctx)
	defer leave()
	go func() {
		_, err := warmpathv1.NewRoutingServiceClient(greedy).ChooseReplica(waiting, &warmpathv1.ChooseReplicaRequest{})
		last <- err
	}()
	for range 100 {
		f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: query})
	}
	require.Empty(t, last)
	leave() // while the others go on: their end would make room
	require.Error(t, <-last)
}

// Names as long as a message are refused, neither kept nor repeated.
func TestLongNames(t *testing.T) {
	f := start(t, strings.Replace(quiet, "policy:", "register: true\n    policy:", 1))
	long := strings.Repeat("\x01", 1<<20)
	refused := func(name string, err error) {
		t.Helper()
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.Less(t, len(err.Error()), 1000, name)
	}
	for name, r := range map[string]*warmpathv1.Replica{
		"id": {Id: long, Address: "a:1"}, "address": {Address: long + ":1"}, "server_name": {Address: "a:1", ServerName: long},
		"zone": {Address: "a:1", Zone: long}, "node": {Address: "a:1", Node: long}, "instance": {Address: "a:1", Instance: long},
		"kv_events": {Address: "a:1", KvEvents: "tcp://" + long + ":1"}, "replay": {Address: "a:1", KvEventsReplay: long},
		"role": {Address: "a:1", Role: long}, "pair": {Address: "a:1", Pair: long}, "kv_bootstrap": {Address: "a:1", KvBootstrap: long + ":1"},
		"kv_engine_id": {Address: "a:1", KvEngineId: long},
		"models":       {Address: "a:1", Models: []string{long}}, "adapters": {Address: "a:1", Adapters: []string{long}},
		"stats": {Address: "a:1", Stats: map[string]float64{long: 1}},
	} {
		_, err := f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: r})
		refused(name, err)
	}
	_, err := f.pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: long})
	refused("choose", err)
	_, err = f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Deployment: long})
	refused("register", err)
	_, err = warmpathv1.NewStatusServiceClient(f.conn).GetStatus(soon(t), &warmpathv1.GetStatusRequest{Deployment: long})
	refused("status", err)
	_, err = warmpathv1.NewStoreServiceClient(f.conn).Get(soon(t), &warmpathv1.GetRequest{Deployment: long, Key: "k"})
	refused("store", err)
	_, err = f.watch(t, &warmpathv1.WatchStart{Deployment: long, ClientId: "x"}).stream.Recv()
	refused("watch", err)
}

// A watcher that does not read blocks its own stream only.
func TestWatcherThatDoesNotRead(t *testing.T) {
	f := start(t, quiet)
	deaf := f.watch(t, &warmpathv1.WatchStart{ClientId: "deaf", Load: true})
	deaf.next()
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x", Load: true})
	w.next()
	for i := range uint64(2000) {
		w.report(i+1, true, loadOf([3]int{1, int(i%7) + 1, 0}, [3]int{2, 1, int(i)}, [3]int{3, 1, int(i)}))
		f.received(t, "x", i+1)
		f.tick("chat")
		for w.next().GetLoad().GetCounted() != i+1 {
		}
	}
}

// Whatever a replica or a watcher sends is refused with a status or taken, and the sums stay within bounds.
func FuzzReports(f *testing.F) {
	for _, m := range []proto.Message{
		&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "a", Address: "a:1", Stats: map[string]float64{"x": 1}}, Ongoing: proto.Uint32(1)},
		&warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Address: "[::1]:1", Ranks: 3}, LeaseMs: 1, Leaving: true},
	} {
		raw, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(raw, []byte(nil))
	}
	raw, err := proto.Marshal(&warmpathv1.ReservationReport{Number: 1, Loads: loadOf([3]int{1, 2, 3})})
	require.NoError(f, err)
	f.Add([]byte(nil), raw)
	now := newClock()
	c := parse(f, registering)
	d := deploy(f, c, "chat", now.now)
	f.Cleanup(d.close)
	f.Fuzz(func(t *testing.T, heartbeat, report []byte) {
		var r warmpathv1.RegisterRequest
		if proto.Unmarshal(heartbeat, &r) == nil {
			if m, err := decodeReplica(r.GetReplica()); err == nil && m.KVEvents == "" {
				_, _ = d.register(&r, m)
			}
		}
		w, err := d.watch(unrestricted(), &warmpathv1.WatchStart{ClientId: "x", Load: true})
		require.NoError(t, err)
		defer w.unwatch()
		var b warmpathv1.ReservationReport
		if proto.Unmarshal(report, &b) == nil {
			_ = w.reported(&b)
		}
		now.advance(1)
		d.tick(now.now())
		all, _, _ := w.news()
		for _, m := range all {
			_, err := proto.Marshal(m)
			require.NoError(t, err)
		}
		for _, sum := range d.balance.ledger.loads() {
			require.GreaterOrEqual(t, sum.ongoing, int64(0))
			require.GreaterOrEqual(t, sum.tokens, int64(0))
		}
	})
}
