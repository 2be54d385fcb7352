package telemetry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A program whose views do not fit our instruments goes without metrics, and is told once. No other test of this
// package uses the global provider.
func TestDefaultWhereInstrumentsAreRefused(t *testing.T) {
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()), sdkmetric.WithView(
		sdkmetric.NewView(sdkmetric.Instrument{Name: "warmpath.*"}, sdkmetric.Stream{Aggregation: sdkmetric.AggregationLastValue{}})))
	var told []error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { told = append(told, err) }))
	otel.SetMeterProvider(mp)
	r := telemetry.Default()
	require.Len(t, told, 1)
	require.ErrorContains(t, told[0], "creating instruments")
	r.Decided(t.Context(), nil, "round_robin", new(policy.Request), &policy.Decision{Reason: policy.ReasonRoundRobin})
	require.False(t, r.Counts(t.Context()))
}
