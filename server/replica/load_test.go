package replica

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// decode reads an OrcaLoadReport: its named metrics, and application_utilization under its own name.
func decode(t *testing.T, b []byte) map[string]float64 {
	t.Helper()
	got := make(map[string]float64)
	double := func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		require.Positive(t, n)
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		require.Positive(t, size)
		value := b[n : n+size]
		b = b[n+size:]
		if num == applicationUtilization {
			got["application_utilization"] = double(value)
			continue
		}
		require.EqualValues(t, namedMetrics, num)
		entry, _ := protowire.ConsumeBytes(value)
		_, _, n = protowire.ConsumeTag(entry)
		name, size := protowire.ConsumeString(entry[n:])
		require.Positive(t, size)
		require.Len(t, entry, n+size+1+8)
		got[name] = double(entry[n+size+1:])
	}
	return got
}

// The trailer of a call, while two others are under way.
func TestLoadInTrailers(t *testing.T) {
	engine := func(l Load) func() Load { return func() Load { return l } }
	for name, c := range map[string]struct {
		config Config
		want   map[string]float64
	}{
		"what the interceptors count": {Config{}, map[string]float64{warmpathv1.MetricRunning: 2}},
		"a bound":                     {bounded(4), map[string]float64{warmpathv1.MetricRunning: 2, "application_utilization": 0.5}},
		"the engine's report": {
			Config{Load: engine(Load{Ongoing: 7, Waiting: 3, UncachedTokens: 1234}), KVTokens: 281600, Replica: policy.Attributes{MaxOngoing: 14}},
			map[string]float64{
				warmpathv1.MetricRunning: 4, warmpathv1.MetricWaiting: 3, warmpathv1.MetricUncachedTokens: 1234,
				warmpathv1.MetricTokenCapacity: 281600, "application_utilization": 0.5,
			},
		},
		"a partial report": {
			Config{Load: engine(Load{Waiting: 1, UncachedTokens: -1})},
			map[string]float64{warmpathv1.MetricRunning: 1, warmpathv1.MetricWaiting: 1},
		},
		"a contradictory report": {
			Config{Load: engine(Load{Waiting: 9})},
			map[string]float64{warmpathv1.MetricRunning: 0, warmpathv1.MetricWaiting: 9, warmpathv1.MetricUncachedTokens: 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := New(c.config)
			require.NoError(t, err)
			m := newModel()
			conn, _, _ := serve(t, r, m)
			close(m.release)
			for kind, call := range calls {
				for range 2 {
					_, ok := r.enter()
					require.True(t, ok)
				}
				trailer, err := call(within(t), conn)
				require.NoError(t, err)
				raw := trailer.Get(warmpathv1.TrailerLoad)
				require.Len(t, raw, 1, kind)
				require.Equal(t, c.want, decode(t, []byte(raw[0])), kind)
				r.ongoing.Add(-1)
				r.ongoing.Add(-1)
			}
		})
	}
}

func TestLoadMayBeOmitted(t *testing.T) {
	r, err := New(Config{OmitLoad: true})
	require.NoError(t, err)
	m := newModel()
	conn, _, _ := serve(t, r, m)
	close(m.release)
	for _, call := range calls {
		trailer, err := call(within(t), conn)
		require.NoError(t, err)
		require.Empty(t, trailer.Get(warmpathv1.TrailerLoad))
	}
}

// An out-of-band stream has a report at once and then one every 30 s. It does not count as a call of the model,
// and drains like a watch.
func TestReportsOutOfBand(t *testing.T) {
	var queued atomic.Int64
	r, clock := stopped(t, Config{Load: func() Load { return Load{Ongoing: 3, Waiting: 1, UncachedTokens: int(queued.Load())} }})
	conn, end, ended := serve(t, r, newModel())
	s, err := conn.NewStream(within(t), &grpc.StreamDesc{ServerStreams: true}, "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(new(emptypb.Empty)))
	require.NoError(t, s.CloseSend())
	next := func() string {
		var m emptypb.Empty
		require.NoError(t, s.RecvMsg(&m))
		return string(m.ProtoReflect().GetUnknown())
	}
	require.Equal(t, r.report()[warmpathv1.TrailerLoad][0], next())
	require.Zero(t, r.Ongoing())
	queued.Store(9)
	clock.fire(t, 30*time.Second)
	require.Equal(t, r.report()[warmpathv1.TrailerLoad][0], next())
	end()
	clock.fire(t, time.Second)
	clock.fire(t, linger)
	clock.fire(t, linger)
	require.NoError(t, <-ended)
}

// A server without load in its trailers may have a load service of its own.
func TestNoReportsOutOfBand(t *testing.T) {
	r, _ := stopped(t, Config{OmitLoad: true})
	conn, _, _ := serve(t, r, newModel())
	s, err := conn.NewStream(within(t), &grpc.StreamDesc{ServerStreams: true}, "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(new(emptypb.Empty)))
	require.Equal(t, codes.Unimplemented, status.Code(s.RecvMsg(new(emptypb.Empty))))
}
