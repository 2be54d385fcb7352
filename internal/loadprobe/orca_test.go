package loadprobe

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// metric is an entry of named_metrics.
func metric(name string, value float64) []byte {
	var e []byte
	e = protowire.AppendTag(e, mapKey, protowire.BytesType)
	e = protowire.AppendString(e, name)
	e = protowire.AppendTag(e, mapValue, protowire.Fixed64Type)
	e = protowire.AppendFixed64(e, math.Float64bits(value))
	return protowire.AppendBytes(protowire.AppendTag(nil, namedMetrics, protowire.BytesType), e)
}

func orca(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func TestParseOrca(t *testing.T) {
	cpu := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), math.Float64bits(0.5))
	rps := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 7)
	nothing := load.Report{Ongoing: -1, QueuedTokens: -1}
	for name, c := range map[string]struct {
		raw  []byte
		want load.Report
	}{
		"empty":             {nil, nothing},
		"nothing of ours":   {orca(cpu, rps, metric("other", 3)), nothing},
		"running":           {metric(warmpathv1.MetricRunning, 5), load.Report{Ongoing: 5, QueuedTokens: -1}},
		"draining":          {metric(warmpathv1.MetricDraining, 1), load.Report{Ongoing: -1, QueuedTokens: -1, Draining: true}},
		"not draining":      {metric(warmpathv1.MetricDraining, 0), nothing},
		"waiting alone":     {metric(warmpathv1.MetricWaiting, 5), load.Report{Ongoing: -1, QueuedTokens: -1, Waiting: 5}},
		"idle":              {orca(metric(warmpathv1.MetricRunning, 0), metric(warmpathv1.MetricUncachedTokens, 0)), load.Report{}},
		"running, waiting":  {orca(metric(warmpathv1.MetricWaiting, 2), cpu, metric(warmpathv1.MetricRunning, 5)), load.Report{Ongoing: 7, QueuedTokens: -1, Waiting: 2}},
		"tokens, capacity":  {orca(metric(warmpathv1.MetricUncachedTokens, 1234), metric(warmpathv1.MetricTokenCapacity, 281600)), load.Report{Ongoing: -1, QueuedTokens: 1234, KVTokens: 281600}},
		"not a number":      {orca(metric(warmpathv1.MetricRunning, math.NaN()), metric(warmpathv1.MetricUncachedTokens, math.Inf(1)), metric(warmpathv1.MetricTokenCapacity, -3)), nothing},
		"broken at the end": {append(metric(warmpathv1.MetricRunning, 5), 0x42, 0xff), load.Report{Ongoing: 5, QueuedTokens: -1}},
		"broken tag":        {[]byte{0xff}, nothing},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, ParseOrca(c.raw)) })
	}
}

func FuzzParseOrca(f *testing.F) {
	f.Add(orca(metric(warmpathv1.MetricRunning, 5), metric(warmpathv1.MetricWaiting, 2)))
	f.Add(orca(metric(warmpathv1.MetricUncachedTokens, 1e300), metric(warmpathv1.MetricTokenCapacity, math.NaN())))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := ParseOrca(b)
		require.GreaterOrEqual(t, r.Ongoing, -1)
		require.GreaterOrEqual(t, r.QueuedTokens, int64(-1))
		require.GreaterOrEqual(t, r.KVTokens, 0)
	})
}
