package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// watch is a client that watches.
type watch struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[warmpathv1.WatchReplicasRequest, warmpathv1.WatchReplicasResponse]
	cancel context.CancelFunc
}

func (f *fixture) watch(t testing.TB, s *warmpathv1.WatchStart) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(soon(t))
	stream, err := f.pb.WatchReplicas(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: s}))
	return &watch{t, stream, cancel}
}

func (w *watch) next() *warmpathv1.WatchReplicasResponse {
	w.t.Helper()
	m, err := w.stream.Recv()
	require.NoError(w.t, err)
	return m
}

func (w *watch) report(number uint64, complete bool, l *warmpathv1.Loads) {
	w.t.Helper()
	require.NoError(w.t, w.stream.Send(&warmpathv1.WatchReplicasRequest{
		Reservations: &warmpathv1.ReservationReport{Number: number, Complete: complete, Loads: l},
	}))
}

// received waits until the server has taken a client's report.
func (f *fixture) received(t testing.TB, id string, number uint64) {
	t.Helper()
	d := f.deployment("chat")
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		c := d.balance.ledger.clients[id]
		return c != nil && c.last == number
	}, 20*time.Second, time.Millisecond)
}

func loadOf(columns ...[3]int) *warmpathv1.Loads {
	l := new(warmpathv1.Loads)
	for _, c := range columns {
		appendLoad(l, uint32(c[0]), replicaLoad{int64(c[1]), int64(c[2])})
	}
	return l
}

func columns(l *warmpathv1.Loads) map[uint32]replicaLoad {
	all := make(map[uint32]replicaLoad)
	for i, n := range l.GetReplicas() {
		all[n] = replicaLoad{int64(l.GetOngoing()[i]), int64(l.GetQueuedTokens()[i])}
	}
	return all
}

func TestWatch(t *testing.T) {
	f := start(t, quiet)
	one := f.watch(t, &warmpathv1.WatchStart{ClientId: "one", Load: true})
	m := one.next()
	require.Equal(t, f.deployment("chat").life, m.GetIncarnation())
	require.EqualValues(t, 1, m.GetConfig().GetVersion())
	require.Contains(t, m.GetConfig().GetServiceConfig(), `"round_robin"`)
	require.True(t, m.GetFleet().GetSnapshot())
	require.Len(t, m.GetFleet().GetReplicas(), 3)
	require.Equal(t, "a", m.GetFleet().GetReplicas()[0].GetId())
	require.EqualValues(t, 1, m.GetFleet().GetReplicas()[0].GetNumber())
	two := f.watch(t, &warmpathv1.WatchStart{Deployment: "chat", ClientId: "two", Load: true})
	two.next()
	one.report(1, true, loadOf([3]int{1, 2, 100}, [3]int{2, 1, 50}, [3]int{77, 9, 9}))
	two.report(1, true, loadOf([3]int{1, 1, 10}))
	f.received(t, "one", 1)
	f.received(t, "two", 1)
	f.tick("chat")
	for _, w := range []*watch{one, two} {
		l := w.next().GetLoad()
		require.True(t, l.GetSnapshot())
		require.EqualValues(t, 1, l.GetCounted())
		require.EqualValues(t, 10_000, l.GetNextMs())
		require.Equal(t, map[uint32]replicaLoad{1: {3, 110}, 2: {1, 50}}, columns(l.GetLoads()))
	}
	view := f.deployment("chat").hosted.Load().router.View()
	n, queued := view.ByID("a").PeerLoad()
	require.Equal(t, []int64{3, 110}, []int64{int64(n), queued}, "the server's own picks see it, too")

	// The server's own picks count as well; only what has changed is sent.
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Pinned: "c", Key: &warmpathv1.RequestKey{Prompt: tokens(7)}})
	two.report(2, false, loadOf([3]int{1, 0, 0}))
	f.received(t, "two", 2)
	f.tick("chat")
	for counted, w := range map[uint64]*watch{1: one, 2: two} {
		l := w.next().GetLoad()
		require.False(t, l.GetSnapshot())
		require.Equal(t, counted, l.GetCounted())
		require.Equal(t, map[uint32]replicaLoad{1: {2, 100}, 3: {1, 7}}, columns(l.GetLoads()))
	}

	n, queued = view.ByID("c").PeerLoad()
	require.Zero(t, n+int(queued), "a client's own load is not its peer load")

	// A client that has ended its watch is counted for a while.
	f.settle("chat")
	two.report(3, false, loadOf([3]int{2, 5, 5}))
	f.received(t, "two", 3)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {6, 55}}, columns(one.next().GetLoad().GetLoads()))
	two.cancel()
	d := f.deployment("chat")
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.watchers == 1
	}, 20*time.Second, time.Millisecond)
	f.clock.advance(3 * time.Second)
	one.report(2, false, nil)
	f.received(t, "one", 2)
	f.tick("chat")
	require.Equal(t, map[uint32]replicaLoad{2: {1, 50}}, columns(one.next().GetLoad().GetLoads()))

	// The load of a silent client is stale, then dropped.
	f.clock.advance(3 * time.Second)
	f.tick("chat")
	l := one.next().GetLoad()
	require.True(t, l.GetStaleSet())
	require.Equal(t, []uint32{1, 2}, l.GetStale())
	f.clock.advance(time.Minute)
	f.tick("chat")
	l = one.next().GetLoad()
	require.True(t, l.GetStaleSet())
	require.Empty(t, l.GetStale())
}

// Membership and config are sent as soon as they change; a client that comes back is sent only what it has missed.
func TestWatchResumes(t *testing.T) {
	f := start(t, quiet)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x"})
	first := w.next()
	next := parse(t, quiet)
	d := next.Deployments["chat"]
	d.Replicas = append(d.Replicas[1:], Replicas(parse(t, "deployments: {x: {replicas: [{address: 'new:1', zone: z}]}}").Deployments["x"].Replicas)...)
	d.Replicas[0].Weight = 2
	next.Deployments["chat"] = d
	require.NoError(t, f.Update(next))
	m := w.next()
	require.Nil(t, m.GetConfig())
	require.Nil(t, m.GetLoad(), "it was not requested")
	u := m.GetFleet()
	require.False(t, u.GetSnapshot())
	require.Equal(t, []uint32{1}, u.GetRemoved())
	require.Len(t, u.GetReplicas(), 2)
	require.Equal(t, 2.0, u.GetReplicas()[0].GetWeight())
	require.Equal(t, "new:1", u.GetReplicas()[1].GetId())
	require.EqualValues(t, 4, u.GetReplicas()[1].GetNumber())

	d.Policy.Name = "power_of_two_choices"
	d.Policy.Config = nil
	next.Deployments["chat"] = d
	require.NoError(t, f.Update(next))
	m = w.next()
	require.EqualValues(t, 2, m.GetConfig().GetVersion())
	require.Contains(t, m.GetConfig().GetServiceConfig(), "power_of_two_choices")
	require.Nil(t, m.GetFleet())
	require.Equal(t, "least_of_two", f.choose(t, &warmpathv1.ChooseReplicaRequest{}).GetDecision().GetReason())

	back := f.watch(t, &warmpathv1.WatchStart{ClientId: "x", Incarnation: first.GetIncarnation(), FleetVersion: 1, ConfigVersion: 2}).next()
	require.Nil(t, back.GetConfig())
	require.Equal(t, []uint32{1}, back.GetFleet().GetRemoved())
	require.False(t, back.GetFleet().GetSnapshot())
	other := f.watch(t, &warmpathv1.WatchStart{ClientId: "y", Incarnation: "another", FleetVersion: 2, ConfigVersion: 2}).next()
	require.NotNil(t, other.GetConfig())
	require.True(t, other.GetFleet().GetSnapshot())

	delete(next.Deployments, "chat")
	next.Deployments["rest"] = d
	require.NoError(t, f.Update(next))
	_, err := w.stream.Recv()
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
}

func TestRefusedWatches(t *testing.T) {
	f := start(t, "max_connections: 4\n"+quiet)
	for name, send := range map[string][]*warmpathv1.WatchReplicasRequest{
		"no start":          {{Reservations: &warmpathv1.ReservationReport{Number: 1}}},
		"no name":           {{Start: &warmpathv1.WatchStart{}}},
		"long name":         {{Start: &warmpathv1.WatchStart{ClientId: string(make([]byte, maxClientID+1))}}},
		"two starts":        {{Start: &warmpathv1.WatchStart{ClientId: "x"}}, {Start: &warmpathv1.WatchStart{ClientId: "x"}}},
		"columns":           {{Start: &warmpathv1.WatchStart{ClientId: "x"}}, {Reservations: &warmpathv1.ReservationReport{Number: 1, Loads: &warmpathv1.Loads{Replicas: []uint32{1}}}}},
		"too many":          {{Start: &warmpathv1.WatchStart{ClientId: "x"}}, {Reservations: &warmpathv1.ReservationReport{Number: 1, Loads: loadOf(make([][3]int, maxDepartures+4)...)}}},
		"number":            {{Start: &warmpathv1.WatchStart{ClientId: "x"}}, {Reservations: &warmpathv1.ReservationReport{}}},
		"no deployment":     {{Start: &warmpathv1.WatchStart{ClientId: "x", Deployment: "none"}}},
		"first with number": {{Start: &warmpathv1.WatchStart{ClientId: "x"}, Reservations: &warmpathv1.ReservationReport{}}},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := f.pb.WatchReplicas(soon(t))
			require.NoError(t, err)
			for _, m := range send {
				_ = stream.Send(m)
			}
			for err == nil {
				_, err = stream.Recv()
			}
			want := codes.InvalidArgument
			if name == "no deployment" {
				want = codes.NotFound
			}
			require.Equal(t, want, status.Code(err), "%v", err)
		})
	}
	f.watch(t, &warmpathv1.WatchStart{ClientId: "first"}).next()
	f.watch(t, &warmpathv1.WatchStart{ClientId: "second"}).next()
	_, err := f.watch(t, &warmpathv1.WatchStart{ClientId: "third"}).stream.Recv()
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
}

// Watches under ever new names do not fill the ledger.
func TestComingAndGoingIsBounded(t *testing.T) {
	c := parse(t, "max_connections: 4\n"+quiet)
	now := newClock()
	d := deploy(t, c, "chat", now.now)
	defer d.close()
	come := func(id string) error {
		w, err := d.watch(unrestricted(), &warmpathv1.WatchStart{ClientId: id})
		if err == nil {
			w.unwatch()
		}
		return err
	}
	for _, id := range []string{"a", "b", "b", "c", "d"} {
		require.NoError(t, come(id))
	}
	require.Error(t, come("e"))
	now.advance(3 * time.Second)
	d.tick(now.now())
	require.NoError(t, come("e"))
}

// An empty fleet is sent to a watcher once, and not at every interval.
func TestAnEmptyFleetIsSentOnce(t *testing.T) {
	now := newClock()
	c := parse(t, "deployments: {chat: {register: true}}")
	d := deploy(t, c, "chat", now.now)
	defer d.close()
	w, err := d.watch(unrestricted(), &warmpathv1.WatchStart{ClientId: "x"})
	require.NoError(t, err)
	first, _, _ := w.news()
	require.True(t, first[0].GetFleet().GetSnapshot())
	for range 3 {
		d.tick(now.now())
		more, _, _ := w.news()
		require.Empty(t, more)
	}
	_, err = d.register(new(warmpathv1.RegisterRequest), replicaAt("r", "r:1"))
	require.NoError(t, err)
	more, _, _ := w.news()
	require.Len(t, more[0].GetFleet().GetReplicas(), 1)
}

// A deployment that is removed and added again starts its versions again: a client with the old ones gets a
// snapshot.
func TestWatchOfADeploymentThatIsAddedAgain(t *testing.T) {
	f := start(t, quiet)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "x"})
	first := w.next()
	require.NoError(t, f.Update(parse(t, strings.Replace(quiet, "chat:", "other:", 1))))
	_, err := w.stream.Recv()
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
	require.NoError(t, f.Update(parse(t, strings.NewReplacer("id: a", "id: d", "round_robin", "power_of_two_choices").Replace(quiet))))
	m := f.watch(t, &warmpathv1.WatchStart{
		ClientId: "x", Deployment: "chat", Incarnation: first.GetIncarnation(),
		FleetVersion: first.GetFleet().GetVersion(), ConfigVersion: first.GetConfig().GetVersion(),
	}).next()
	require.NotEqual(t, first.GetIncarnation(), m.GetIncarnation())
	require.Contains(t, m.GetConfig().GetServiceConfig(), "power_of_two_choices")
	require.True(t, m.GetFleet().GetSnapshot())
	require.Equal(t, "d", m.GetFleet().GetReplicas()[0].GetId())
}
