package server

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// measured reads the server's own metrics, each summed over its attributes.
func measured(t testing.TB, from *sdkmetric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, from.Collect(t.Context(), &all))
	sums := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points []metricdata.DataPoint[int64]
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				points = data.DataPoints
			case metricdata.Sum[int64]:
				points = data.DataPoints
			}
			for _, p := range points {
				sums[m.Name] += p.Value
			}
		}
	}
	return sums
}

// Every metric of the server's own is 0 before anything has happened, and changes when it does.
func TestEveryMetricMoves(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	now := newClock()
	s, err := New(parse(t, `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {}}
    register: true
    load_poll: "grpc:vllm"`), Options{Logger: discard, now: now.now, Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	require.NoError(t, err)
	f := serveFixture(t, s)
	f.clock = now
	for _, x := range figures {
		require.Contains(t, measured(t, reader), x.Name)
		require.Zero(t, measured(t, reader)[x.Name], x.Name)
	}

	_, err = f.pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{})
	require.Error(t, err, "the fleet is empty")
	_, err = f.pb.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "a", Address: "127.0.0.1:1"}})
	require.NoError(t, err)
	w := f.watch(t, &warmpathv1.WatchStart{ClientId: "w", Index: true, Load: true})
	w.next()
	a := f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Key: &warmpathv1.RequestKey{Prompt: tokens(4000)}})
	_, err = f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: a.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE,
	}}})
	require.NoError(t, err)
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: reserve, Key: &warmpathv1.RequestKey{Prompt: tokens(8000)}})
	f.tick("chat")
	moved := make(map[string]bool)
	look := func() (all bool) {
		for name, n := range measured(t, reader) {
			moved[name] = moved[name] || n > 0
		}
		all = true
		for _, x := range figures {
			all = all && (moved[x.Name] || x.Name == "warmpath.server.peers") // this server is alone
		}
		return all
	}
	require.Eventually(t, func() bool { look(); return moved["warmpath.server.polls.failed"] }, 20*time.Second, 5*time.Millisecond)
	huge := described{Attributes: policy.Attributes{ID: "huge", Address: "10.0.0.9:1", Adapters: []string{strings.Repeat("x", maxDescription)}}}
	f.deployment("chat").update(func(x *sources) bool { return x.resolve("", []described{huge}) })
	for w.next().GetFleet() == nil { // the update names no replica that clients cannot be sent
	}
	now.advance(2 * time.Minute) // both leases have expired
	f.tick("chat")
	require.Eventually(t, look, 20*time.Second, 5*time.Millisecond, "%v", &moved)
	for _, name := range []string{
		"warmpath.server.picks.failed", "warmpath.server.replicas", "warmpath.server.replica.ongoing", "warmpath.server.replica.queued_tokens",
	} {
		require.True(t, moved[name], name)
	}
}

// refusing is a provider whose meters take no callback.
type (
	refusing      struct{ noop.MeterProvider }
	refusingMeter struct{ noop.Meter }
)

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

func (refusingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return nil, errors.New("no callbacks")
}

// A server without its metrics serves, logs the cause once for each Router, and closes.
func TestMetricsThatFail(t *testing.T) {
	var log bytes.Buffer
	c := parse(t, quiet)
	s, err := New(c, Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Meter: refusing{}})
	require.NoError(t, err)
	require.NoError(t, s.Update(c))
	s.Close()
	require.Equal(t, 1, strings.Count(log.String(), "some metrics are not recorded"))
	require.Equal(t, 1, strings.Count(log.String(), "the deployment starts"))
}
