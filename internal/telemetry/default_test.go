package telemetry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A program whose views do not fit warmpath's instruments has no metrics, and gets one error. No other test of
// this package uses the global provider.
func TestDefaultWhereInstrumentsAreRefused(t *testing.T) {
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()), sdkmetric.WithView(
		sdkmetric.NewView(sdkmetric.Instrument{Name: "warmpath.*"}, sdkmetric.Stream{Aggregation: sdkmetric.AggregationLastValue{}})))
	var reported []error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { reported = append(reported, err) }))
	otel.SetMeterProvider(mp)
	r := telemetry.Default()
	require.Len(t, reported, 1)
	require.ErrorContains(t, reported[0], "creating instruments")
	r.Decided(t.Context(), nil, "round_robin", new(policy.Request), &policy.Decision{Reason: policy.ReasonRoundRobin})
	require.False(t, r.Counts(t.Context()))
}
