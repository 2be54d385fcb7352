package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const fourReplicas = `
deployments:
  chat:
    policy: {round_robin: {}}
    ejection: {max_share: 0.5}
    replicas:
    - {id: r1, address: "127.0.0.1:1"}
    - {id: r2, address: "127.0.0.1:2"}
    - {id: r3, address: "127.0.0.1:3"}
    - {id: r4, address: "127.0.0.1:4"}
`

// shows reports the outcomes of a client's calls on one replica.
func (w *watch) shows(o *warmpathv1.ReplicaOutcomes) {
	w.t.Helper()
	require.NoError(w.t, w.stream.Send(&warmpathv1.WatchReplicasRequest{Outcomes: &warmpathv1.OutcomeReport{Replicas: []*warmpathv1.ReplicaOutcomes{o}}}))
}

// ejected waits until these replicas are ejected, and no others. It returns those that the client is to probe.
func (w *watch) ejected(want ...uint32) (probes []uint32) {
	w.t.Helper()
	for {
		u := w.next().GetOutliers()
		if u == nil {
			continue
		}
		var got []uint32
		probes = nil
		for _, o := range u.GetReplicas() {
			got = append(got, o.GetReplica())
			if o.GetProbe() {
				probes = append(probes, o.GetReplica())
			}
		}
		if slices.Equal(want, got) {
			return probes
		}
	}
}

func (f *fixture) picks(t *testing.T, n int) map[string]int {
	counts := map[string]int{}
	for range n {
		counts[f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_QUERY}).GetReplica().GetId()]++
	}
	return counts
}

// The outcomes of one client's calls eject a replica for all clients, for the server's own picks, and for later
// clients.
func TestOutcomesReachAll(t *testing.T) {
	for name, o := range map[string]*warmpathv1.ReplicaOutcomes{"failures": {Replica: 2, Failures: 5}, "late": {Replica: 2, Late: 5}} {
		t.Run(name, func(t *testing.T) {
			f := start(t, fourReplicas)
			one, two := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"}), f.watch(t, &warmpathv1.WatchStart{ClientId: "b"})
			require.Len(t, two.next().GetFleet().GetReplicas(), 4)
			one.shows(&warmpathv1.ReplicaOutcomes{Replica: 99, Failures: 50})
			one.shows(&warmpathv1.ReplicaOutcomes{Replica: 3, Successes: 1})
			one.shows(o)
			two.ejected(2)
			f.watch(t, &warmpathv1.WatchStart{ClientId: "c"}).ejected(2)
			require.Zero(t, f.picks(t, 40)["r2"])
		})
	}
}

// The failures of several clients add up, and an answer to one of them resets the count.
func TestOutcomesAddUp(t *testing.T) {
	f := start(t, fourReplicas)
	all := make([]*watch, 6)
	for i := range all {
		all[i] = f.watch(t, &warmpathv1.WatchStart{ClientId: fmt.Sprint("client ", i)})
		all[i].next()
	}
	sent := uint64(0)
	show := func(i int, o *warmpathv1.ReplicaOutcomes) { // reports of several clients come one after the other
		sent++
		all[i].shows(o)
		all[i].report(sent, false, nil)
		f.received(t, fmt.Sprint("client ", i), sent)
	}
	for i := range 4 {
		show(i, &warmpathv1.ReplicaOutcomes{Replica: 2, Failures: 1})
	}
	show(5, &warmpathv1.ReplicaOutcomes{Replica: 2, Successes: 1})
	for i := range 5 {
		require.False(t, f.deployment("chat").ejects(2))
		show(i, &warmpathv1.ReplicaOutcomes{Replica: 2, Failures: 1})
	}
	all[5].ejected(2)
}

// Issue 12.38: one principal under several client ids does not keep a healthy replica from others: while others
// are active it counts for half of the threshold, and one of them probes first.
func TestOnePrincipalKeepsNoReplicaFromOthers(t *testing.T) {
	f := start(t, `
load_interval: 10s
principals:
- {name: good, token: good-0123456789abcdef}
- {name: evil, token: evil-0123456789abcdef}
`+fourReplicas)
	watchAs := func(token, id string) *watch {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		stream, err := f.with(t, token).WatchReplicas(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: id}}))
		w := &watch{t, stream, cancel}
		require.Len(t, w.next().GetFleet().GetReplicas(), 4)
		return w
	}
	good := watchAs("good-0123456789abcdef", "g")
	var latest atomic.Pointer[warmpathv1.OutlierUpdate]
	latest.Store(new(warmpathv1.OutlierUpdate))
	go func() { // ends with the stream
		for {
			m, err := good.stream.Recv()
			if err != nil {
				return
			}
			if u := m.GetOutliers(); u != nil {
				latest.Store(u)
			}
		}
	}()
	evil := []*watch{watchAs("evil-0123456789abcdef", "e1"), watchAs("evil-0123456789abcdef", "e2"), watchAs("evil-0123456789abcdef", "e3")}
	kept, total, n := 0, 600, uint64(0)
	for range total { // seconds
		n++
		for _, w := range evil {
			w.shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Failures: 50})
			w.report(n, false, nil)
		}
		for i := range 3 {
			f.received(t, fmt.Sprint("evil\x00e", i+1), n)
		}
		f.tick("chat")
		out := f.deployment("chat").ejects(2)
		if out {
			kept++
			probes := f.deployment("chat").prober(2) == "good\x00g"
			require.Eventually(t, func() bool {
				all := latest.Load().GetReplicas()
				return len(all) == 1 && all[0].GetProbe() == probes
			}, 20*time.Second, time.Millisecond)
		}
		if all := latest.Load().GetReplicas(); len(all) == 0 || all[0].GetProbe() {
			good.shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Successes: 1})
		}
		good.report(n, false, nil)
		f.received(t, "good\x00g", n)
		f.clock.advance(time.Second)
	}
	require.NotZero(t, kept, "its reports have a weight")
	require.Less(t, kept, total/20)
}

// ejects reports whether a replica is ejected for all.
func (d *deployment) ejects(number uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.roster.numbered(number).ejection != nil
}

// prober is the client that may probe a replica that is ejected.
func (d *deployment) prober(number uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.roster.numbered(number).ejection.prober
}

// Outcomes that callers report of their reservations count.
func TestOutcomesOfReservations(t *testing.T) {
	f := start(t, fourReplicas)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"})
	w.next()
	for range 5 {
		a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Pinned: "r3"})
		_, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
			Reservation: a.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
			Outcome: &warmpathv1.Outcome{Code: int32(codes.Unavailable), Sent: true},
		}}})
		require.NoError(t, err)
	}
	require.Zero(t, f.picks(t, 40)["r3"])
	f.tick("chat")
	w.ejected(3)
}

// A half-open replica is probed by one client at a time, until an answer brings it back; the right to probe
// rotates while it is not used.
func TestProbesRotate(t *testing.T) {
	f := start(t, strings.Replace(fourReplicas, "deployments:", "load_interval: 10s\ndeployments:", 1))
	var all []*watch
	for i := range 3 {
		all = append(all, f.watch(t, &warmpathv1.WatchStart{ClientId: fmt.Sprint("client ", i)}))
		all[i].next()
	}
	all[0].shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Failures: 5})
	all[0].ejected(2)
	d := f.deployment("chat")
	prober := func() string {
		f.tick("chat")
		return d.prober(2)
	}
	require.Empty(t, prober())
	f.advance(11 * time.Second)
	seen := map[string]int{}
	for range 6 {
		seen[prober()]++
		f.advance(1100 * time.Millisecond)
	}
	require.Equal(t, map[string]int{"client 0": 2, "client 1": 2, "client 2": 2}, seen)
	id := prober()
	index := int(id[len(id)-1] - '0')
	all[index].report(1, false, &warmpathv1.Loads{Replicas: []uint32{2}, Ongoing: []uint32{1}, QueuedTokens: []uint64{0}})
	f.received(t, id, 1)
	for range 20 { // while its request is there it is under way
		f.advance(2 * time.Second)
		require.Equal(t, id, prober())
	}
	all[(index+1)%3].shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Successes: 1}) // it is not the prober
	all[index].shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Failures: 1})
	require.Eventually(t, func() bool {
		f.tick("chat")
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.roster.numbered(2).ejection.state == outlier.Ejected
	}, 20*time.Second, time.Millisecond, "its probe failed")
	f.advance(21 * time.Second)
	id = prober()
	all[id[len(id)-1]-'0'].shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Successes: 1})
	for _, w := range all {
		w.ejected()
	}
	require.False(t, d.ejects(2))
}

// A caller's report of the first message is an answer: a long stream does not delay the end of the probe.
func TestProbesByReservations(t *testing.T) {
	f := start(t, fourReplicas)
	reserve := func() string {
		return f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Excluded: []string{"r1", "r2", "r4"}}).GetReservation().GetId()
	}
	report := func(l *warmpathv1.LifeReport) {
		_, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{l}})
		require.NoError(t, err)
	}
	for range 5 {
		report(&warmpathv1.LifeReport{
			Reservation: reserve(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
			Outcome: &warmpathv1.Outcome{Code: int32(codes.Unavailable), Sent: true},
		})
	}
	router := f.deployment("chat").hosted.Load().router
	state := func() outlier.State {
		s, _ := router.Outliers().State(router.Outlier(router.View().ByID("r3")))
		return s
	}
	require.Equal(t, outlier.Ejected, state())
	f.clock.advance(11 * time.Second)
	id := reserve()
	require.Equal(t, outlier.HalfOpen, state())
	report(&warmpathv1.LifeReport{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PROGRESS})
	require.Equal(t, outlier.HalfOpen, state())
	report(&warmpathv1.LifeReport{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE})
	require.Equal(t, outlier.SlowStart, state())
}

// A lease without reports is no answer: it brings no replica back.
func TestLeasesWithoutOutcomesProveNothing(t *testing.T) {
	f := start(t, fourReplicas)
	d := f.deployment("chat")
	router := d.hosted.Load().router
	router.Outliers().Add(router.Outlier(router.View().ByID("r1")), "", outlier.Counts{Failures: 5}, false)
	for range 400 { // it is probed by picks
		f.tick("chat")
		f.choose(t, &warmpathv1.ChooseReplicaRequest{})
		f.clock.advance(200 * time.Millisecond)
		require.True(t, d.ejects(1))
	}
	require.NotZero(t, router.Outliers().Stats().Probes)
}

func TestTooManyOutcomes(t *testing.T) {
	f := start(t, fourReplicas)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"})
	w.next()
	require.NoError(t, w.stream.Send(&warmpathv1.WatchReplicasRequest{Outcomes: &warmpathv1.OutcomeReport{
		Replicas: make([]*warmpathv1.ReplicaOutcomes, 4+maxDepartures+1),
	}}))
	for {
		if _, err := w.stream.Recv(); err != nil {
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			return
		}
	}
}

// A deployment with ejection disabled clears its ejections, and ejects nothing.
func TestOutcomesWhereEjectionIsDisabled(t *testing.T) {
	f := start(t, fourReplicas)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"})
	w.next()
	w.shows(&warmpathv1.ReplicaOutcomes{Replica: 2, Failures: 5})
	w.ejected(2)
	require.NoError(t, f.Update(parse(t, strings.Replace(fourReplicas, "max_share: 0.5", "failures: off", 1))))
	w.ejected()
	w.shows(&warmpathv1.ReplicaOutcomes{Replica: 3, Failures: 500})
	w.report(1, false, nil)
	f.received(t, "a", 1)
	f.tick("chat")
	require.False(t, f.deployment("chat").ejects(3))
}

// The metrics show the state of each replica, by deployment.
func TestMetricsOfOutliers(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	now := newClock()
	s, err := New(parse(t, fourReplicas+"  code: {policy: {round_robin: {}}, replicas: [{id: r2, address: 'h:1'}]}\n"),
		Options{Logger: discard, now: now.now, Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	require.NoError(t, err)
	defer s.Close()
	d := (*s.deployments.Load())["chat"]
	router := d.hosted.Load().router
	router.Outliers().Add(router.Outlier(router.View().ByID("r2")), "a", outlier.Counts{Failures: 5}, false)
	d.tick(now.now())

	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	got := map[string]string{} // the state, by deployment and replica
	states := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			gauge, ok := m.Data.(metricdata.Gauge[int64])
			if !ok {
				continue
			}
			for _, p := range gauge.DataPoints {
				at := func(k attribute.Key) string { v, _ := p.Attributes.Value(k); return v.AsString() }
				switch m.Name {
				case "warmpath.replica.condition":
					got[at(telemetry.KeyDeployment)+"/"+at(telemetry.KeyReplica)] = at(telemetry.KeyCondition)
				case "warmpath.server.replicas":
					states[at(telemetry.KeyDeployment)+"/"+at(keyState)] = p.Value
				}
			}
		}
	}
	require.Equal(t, map[string]string{
		"chat/r1": "healthy", "chat/r2": "ejected", "chat/r3": "healthy", "chat/r4": "healthy", "code/r2": "healthy",
	}, got)
	maps.DeleteFunc(states, func(_ string, n int64) bool { return n == 0 })
	require.Equal(t, map[string]int64{"chat/ready": 3, "chat/ejected": 1, "code/ready": 1}, states)
}

// The clients come in the order of their names; those with reports against the replica come last.
func TestProbersInOrder(t *testing.T) {
	l, evidence := ledger{roster: new(roster)}, make(map[string]int)
	for i := range 100 {
		id := fmt.Sprintf("%02d", i)
		l.open(id, &principal{name: id}, time.Time{})
		if i < 10 {
			evidence[id] = 1
		}
	}
	require.Equal(t, "10", l.nextProber(1, "", evidence))
	require.Equal(t, "00", l.nextProber(1, "99", evidence))
}

// Ejections that have not changed cost nothing for each watcher, however many replicas are ejected.
func TestUnchangedEjectionsCostNothing(t *testing.T) {
	now := newClock()
	d := deploy(t, parse(t, manyReplicas(1000)), "chat", now.now)
	defer d.close()
	w, err := d.watch(unrestricted(), &warmpathv1.WatchStart{ClientId: "x"})
	require.NoError(t, err)
	rt := d.hosted.Load().router
	for _, r := range rt.View().Replicas() {
		rt.Outliers().Add(rt.Outlier(r), "", outlier.Counts{Failures: 5}, false)
	}
	d.tick(now.now())
	news, _, _ := w.news()
	require.Greater(t, len(news[0].GetOutliers().GetReplicas()), 100)
	require.Less(t, testing.AllocsPerRun(10, func() {
		news, _, _ := w.news()
		require.Empty(t, news)
	}), 100.0)
}
