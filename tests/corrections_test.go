package tests

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// stubborn picks one replica, even if the request excludes it.
func stubborn(id string) policy.Policy {
	return policy.Policy{Name: "stubborn", Choose: func(_ *policy.Request, v policy.View) policy.Decision {
		return policy.To(v.ByID(id), "stubborn")
	}}
}

// Issue 12.17: a pick of a replica that the request excludes is counted, and logged once a policy.
func TestCorrectedPicksAreCounted(t *testing.T) {
	var log logged
	before := slog.Default()
	slog.SetDefault(log.logger())
	t.Cleanup(func() { slog.SetDefault(before) })

	r := policytest.NewRouter(t, stubborn("r0"), policytest.Bounded(policytest.Fleet(3), 2))
	reader := sdkmetric.NewManualReader()
	recorder, err := telemetry.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	require.NoError(t, err)
	stop, err := recorder.Watch("mine", r)
	require.NoError(t, err)
	defer stop()

	require.Equal(t, "r0", policytest.Route(t, r, &policy.Request{}))
	release := policytest.Fill(t, r, "r0", 2)
	require.ErrorIs(t, r.Reserve(t.Context(), &policy.Request{}, new(router.Reservation), router.How{NoWait: true}), router.ErrFull, "a full one is waited for")
	release(2)
	require.Zero(t, correctionsIn(t, reader))
	for range 3 {
		require.NotEqual(t, "r0", policytest.Route(t, r, &policy.Request{Exclude: []string{"r0"}}))
	}
	r.Fleet.SetConnected("r0", false)
	require.NotEqual(t, "r0", policytest.Route(t, r, &policy.Request{}))
	require.EqualValues(t, 4, correctionsIn(t, reader))
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	require.Contains(t, log.String(), "stubborn")
}

func correctionsIn(t *testing.T, reader sdkmetric.Reader) int64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name == "warmpath.pick.corrections" {
				return m.Data.(metricdata.Sum[int64]).DataPoints[0].Value
			}
		}
	}
	t.Fatal("no such metric")
	return 0
}
