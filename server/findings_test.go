package server

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
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

func (w *watch) finds(all ...*warmpathv1.Finding) {
	w.t.Helper()
	require.NoError(w.t, w.stream.Send(&warmpathv1.WatchReplicasRequest{Findings: &warmpathv1.FindingReport{Findings: all}}))
}

// told waits for verdicts of which the one on a replica is in a state.
func (w *watch) told(replica uint32, s warmpathv1.VerdictState) *warmpathv1.Verdict {
	w.t.Helper()
	for {
		for _, v := range w.next().GetVerdicts().GetVerdicts() {
			if v.GetReplica() == replica && v.GetState() == s {
				return v
			}
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

// What two clients find reaches the third, the server's own picks, and whoever comes later.
func TestFindingsReachAll(t *testing.T) {
	f := start(t, fourReplicas)
	one, two, three := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"}), f.watch(t, &warmpathv1.WatchStart{ClientId: "b"}), f.watch(t, &warmpathv1.WatchStart{ClientId: "c"})
	require.Len(t, three.next().GetFleet().GetReplicas(), 4)
	one.finds(&warmpathv1.Finding{Replica: 2, Kind: late}, &warmpathv1.Finding{Replica: 99, Kind: late})
	three.told(2, suspect)
	f.tick("chat")
	require.Zero(t, f.picks(t, 40)["r2"])
	two.finds(&warmpathv1.Finding{Replica: 2, Kind: failing})
	term := three.told(2, ejected).GetTerm()
	later := f.watch(t, &warmpathv1.WatchStart{ClientId: "d"})
	require.Equal(t, term, later.told(2, ejected).GetTerm())
	f.tick("chat")
	require.Zero(t, f.picks(t, 40)["r2"])
}

// What callers report of their reservations counts as one client's finding.
func TestCallersFindings(t *testing.T) {
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
	w.told(3, suspect)
}

// A caller's word that the first message came is an answer: the trial is not held up by a long stream.
func TestCallersTrials(t *testing.T) {
	f := start(t, fourReplicas)
	reserve := func() string {
		return f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Excluded: []string{"r1", "r2", "r4"}}).GetReservation().GetId()
	}
	tell := func(l *warmpathv1.LifeReport) {
		_, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{l}})
		require.NoError(t, err)
	}
	for range 5 {
		tell(&warmpathv1.LifeReport{
			Reservation: reserve(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
			Outcome: &warmpathv1.Outcome{Code: int32(codes.Unavailable), Sent: true},
		})
	}
	router := f.deployment("chat").hosted.Load().router
	condition := func() routing.Condition {
		c, _ := router.Condition(router.View().ByID("r3"))
		return c
	}
	require.Equal(t, routing.Ejected, condition())
	f.clock.advance(11 * time.Second)
	id := reserve()
	require.Equal(t, routing.OnTrial, condition())
	tell(&warmpathv1.LifeReport{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PROGRESS})
	require.Equal(t, routing.OnTrial, condition())
	tell(&warmpathv1.LifeReport{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE})
	require.Equal(t, routing.Warming, condition())
}

// Silence is no answer: a lease that nobody reports on brings nobody back.
func TestUntoldOutcomesSayNothing(t *testing.T) {
	f := start(t, fourReplicas)
	d := f.deployment("chat")
	d.mu.Lock()
	for _, id := range []string{"a", "b"} {
		d.ledger.open(id, f.clock.now())
		d.find(id, []*warmpathv1.Finding{{Replica: 1, Kind: late}})
	}
	d.mu.Unlock()
	for range 400 { // with the turn, which is the server's alone, it tries
		f.tick("chat")
		f.choose(t, &warmpathv1.ChooseReplicaRequest{})
		f.clock.advance(200 * time.Millisecond)
	}
	require.NotZero(t, d.hosted.Load().router.Health().Trials)
	for _, v := range d.verdicts.told("a").GetVerdicts() {
		require.NotEqual(t, well, v.GetState())
	}
}

func TestTooManyFindings(t *testing.T) {
	f := start(t, fourReplicas)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"})
	w.next()
	w.finds(make([]*warmpathv1.Finding, maxFindings+1)...)
	for {
		if _, err := w.stream.Recv(); err != nil {
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			return
		}
	}
}

// A deployment that ejects nobody heeds no findings, and lifts what it has when that is configured.
func TestFindingsWhereNobodyIsEjected(t *testing.T) {
	f := start(t, fourReplicas)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "a"})
	w.next()
	w.finds(&warmpathv1.Finding{Replica: 2, Kind: late})
	w.told(2, suspect)
	require.NoError(t, f.Update(parse(t, strings.Replace(fourReplicas, "max_share: 0.5", "disabled: true", 1))))
	w.told(2, well)
	w.finds(&warmpathv1.Finding{Replica: 3, Kind: late, Term: 9})
	w.finds(make([]*warmpathv1.Finding, maxFindings+1)...) // in order: the one before has been taken
	for {
		m, err := w.stream.Recv()
		if err != nil {
			return
		}
		for _, v := range m.GetVerdicts().GetVerdicts() {
			require.Equal(t, well, v.GetState())
		}
	}
}

// Who runs the server sees who is left alone, by deployment.
func TestMetricsTellWhatIsFound(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	now := newClock()
	s, err := New(parse(t, fourReplicas+"  code: {policy: {round_robin: {}}, replicas: [{id: r2, address: 'h:1'}]}\n"),
		Options{Logger: discard, Now: now.now, Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	require.NoError(t, err)
	defer s.Close()
	d := (*s.deployments.Load())["chat"]
	d.mu.Lock()
	for _, id := range []string{"a", "b"} {
		d.ledger.open(id, now.now())
		d.find(id, []*warmpathv1.Finding{{Replica: 2, Kind: late}})
	}
	d.mu.Unlock()
	d.tick(now.now())

	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	got := map[string]string{} // the condition, by deployment and replica
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
		"chat/r1": "well", "chat/r2": "ejected", "chat/r3": "well", "chat/r4": "well", "code/r2": "well",
	}, got)
	maps.DeleteFunc(states, func(_ string, n int64) bool { return n == 0 })
	require.Equal(t, map[string]int64{"chat/ready": 3, "chat/ejected": 1, "code/ready": 1}, states)
}
