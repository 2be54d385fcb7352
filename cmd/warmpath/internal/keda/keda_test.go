package keda

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/keda/externalscaler"
	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a look-aside server with the scaler, as KEDA calls it.
type fixture struct {
	externalscaler.ExternalScalerClient
	routing warmpathv1.RoutingServiceClient
	server  *server.Server
	end     context.CancelFunc
	passed  atomic.Int64 // nanoseconds since the start, for the scaler
}

func start(t *testing.T, config string) *fixture {
	t.Helper()
	c, err := server.ParseConfig([]byte(config))
	require.NoError(t, err)
	f := &fixture{}
	until, end := context.WithCancel(context.Background())
	f.end = end
	f.server, err = server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	host := endpoint.Of(f.server)
	scaler := newScaler(until, host, time.Millisecond)
	began := time.Now()
	scaler.now = func() time.Time { return began.Add(time.Duration(f.passed.Load())) }
	externalscaler.RegisterExternalScalerServer(host.Services(), scaler)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.server.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		f.server.Close()
		require.NoError(t, <-ended)
	})
	f.ExternalScalerClient, f.routing = externalscaler.NewExternalScalerClient(conn), warmpathv1.NewRoutingServiceClient(conn)
	return f
}

func trigger(pairs ...string) *externalscaler.ScaledObjectRef {
	ref := &externalscaler.ScaledObjectRef{Name: "engines", Namespace: "chat", ScalerMetadata: map[string]string{
		"scalerAddress": "warmpath:4770", // KEDA sends its own keys too
	}}
	for i := 0; i < len(pairs); i += 2 {
		ref.ScalerMetadata[pairs[i]] = pairs[i+1]
	}
	return ref
}

const two = `
load_interval: 10ms
deployments:
  chat:
    policy: {kv_aware: {}}
    max_ongoing_requests: 1
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}]
`

// reserve picks a replica for a prompt.
func (f *fixture) reserve(t *testing.T, tokens int, wait time.Duration) *warmpathv1.ChooseReplicaResponse {
	t.Helper()
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = uint32(i + tokens)
	}
	a, err := f.routing.ChooseReplica(t.Context(), &warmpathv1.ChooseReplicaRequest{
		Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, WaitMs: uint32(wait.Milliseconds()),
		Key: &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: ids}}},
	})
	require.NoError(t, err)
	return a
}

func (f *fixture) value(t *testing.T, name string, ref *externalscaler.ScaledObjectRef) float64 {
	t.Helper()
	a, err := f.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: name})
	require.NoError(t, err)
	require.Len(t, a.GetMetricValues(), 1)
	require.Equal(t, name, a.GetMetricValues()[0].GetMetricName())
	return a.GetMetricValues()[0].GetMetricValueFloat()
}

// KEDA's sequence of calls: first the targets, then the value of each metric, which is a sum over the replicas.
func TestMetrics(t *testing.T) {
	f := start(t, two)
	ref := trigger("workSeconds", "1.5", "tokensPerSecond", "2000", "waitingRequests", "2", "ongoingRequests", "8")
	spec, err := f.GetMetricSpec(t.Context(), ref)
	require.NoError(t, err)
	targets := map[string]float64{}
	for _, m := range spec.GetMetricSpecs() {
		targets[m.GetMetricName()] = m.GetTargetSizeFloat()
	}
	require.Equal(t, map[string]float64{
		"warmpath-work-seconds": 1.5, "warmpath-waiting-requests": 2, "warmpath-ongoing-requests": 8,
	}, targets)
	for name := range targets {
		require.Zero(t, f.value(t, name, ref), name)
	}

	f.reserve(t, 3000, 0)
	held := f.reserve(t, 5000, 0)
	require.Eventually(t, func() bool { return f.value(t, "warmpath-work-seconds", ref) == 4 }, 20*time.Second, time.Millisecond)
	require.EqualValues(t, 2, f.value(t, "warmpath-ongoing-requests", ref))

	waited := make(chan struct{}) // both replicas are full
	go func() { f.reserve(t, 100, 20*time.Second); close(waited) }()
	require.Eventually(t, func() bool { return f.value(t, "warmpath-waiting-requests", ref) == 1 }, 20*time.Second, time.Millisecond)
	_, err = f.routing.ReportLife(t.Context(), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: held.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	}}})
	require.NoError(t, err)
	<-waited
	require.Zero(t, f.value(t, "warmpath-waiting-requests", ref))
	require.Eventually(t, func() bool { return f.value(t, "warmpath-work-seconds", ref) == 1.55 }, 20*time.Second, time.Millisecond)
}

func TestActive(t *testing.T) {
	f := start(t, two)
	ref := trigger("ongoingRequests", "8", "deployment", "chat")
	a, err := f.IsActive(t.Context(), ref)
	require.NoError(t, err)
	require.False(t, a.GetResult())
	stream, err := f.StreamIsActive(t.Context(), ref)
	require.NoError(t, err)
	next := func() bool {
		a, err := stream.Recv()
		require.NoError(t, err)
		return a.GetResult()
	}
	require.False(t, next())
	held := f.reserve(t, 100, 0)
	require.True(t, next())
	a, err = f.IsActive(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, a.GetResult())
	_, err = f.routing.ReportLife(t.Context(), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: held.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	}}})
	require.NoError(t, err)
	require.False(t, next())
	f.end()
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NoError(t, f.server.Shutdown(t.Context()), "no stream holds it up")
}

// A deployment without replicas is active for some time after a pick that found none.
func TestScaledToZero(t *testing.T) {
	f := start(t, `{deployments: {chat: {register: true}}}`)
	isActive := func() bool {
		a, err := f.IsActive(t.Context(), trigger("ongoingRequests", "8"))
		require.NoError(t, err)
		return a.GetResult()
	}
	require.False(t, isActive())
	pick := func() {
		_, err := f.routing.ChooseReplica(t.Context(), &warmpathv1.ChooseReplicaRequest{})
		require.Equal(t, codes.Unavailable, status.Code(err))
	}
	pick()
	require.True(t, isActive())
	require.True(t, isActive(), "KEDA asks twice")
	f.passed.Add(int64(recent))
	require.False(t, isActive())
	pick()
	require.True(t, isActive())
	f.passed.Add(int64(recent))
	require.False(t, isActive())
}

// Every call refuses invalid metadata, and the error names the key.
func TestMistakes(t *testing.T) {
	f := start(t, `{deployments: {chat: {register: true}, code: {register: true}}}`)
	for _, tt := range []struct {
		ref  *externalscaler.ScaledObjectRef
		code codes.Code
		want string
	}{
		{trigger("ongoing", "1"), codes.InvalidArgument, "ongoing: an unknown key; there are ongoingRequests, waitingRequests, workSeconds, deployment, tokensPerSecond"},
		{trigger("ongoingRequests", "many"), codes.InvalidArgument, `ongoingRequests: "many" is not a number`},
		{trigger("ongoingRequests", "NaN"), codes.InvalidArgument, `ongoingRequests: "NaN" is not a number`},
		{trigger("ongoingRequests", "0"), codes.InvalidArgument, `ongoingRequests: "0" is not a number from 0.001`},
		{trigger("workSeconds", "1"), codes.InvalidArgument, "workSeconds and tokensPerSecond need each other"},
		{trigger("tokensPerSecond", "1"), codes.InvalidArgument, "workSeconds and tokensPerSecond need each other"},
		{trigger(), codes.InvalidArgument, "no target is set; there are ongoingRequests, waitingRequests, workSeconds"},
		{trigger("ongoingRequests", "1"), codes.InvalidArgument, "deployment: there are 2, name one"},
		{trigger("ongoingRequests", "1", "deployment", "none"), codes.NotFound, `there is no deployment "none"`},
	} {
		t.Run(tt.want, func(t *testing.T) {
			_, err := f.IsActive(t.Context(), tt.ref)
			require.Equal(t, tt.code, status.Code(err))
			require.Contains(t, status.Convert(err).Message(), tt.want)
			_, err = f.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: tt.ref, MetricName: "warmpath-ongoing-requests"})
			require.Equal(t, tt.code, status.Code(err))
			stream, err := f.StreamIsActive(t.Context(), tt.ref)
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, tt.code, status.Code(err))
		})
	}
	ref := trigger("ongoingRequests", "1", "deployment", "chat")
	for _, name := range []string{"warmpath-work-seconds", "s0-warmpath-ongoing-requests", ""} {
		_, err := f.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: name})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	_, err := f.GetMetricSpec(t.Context(), trigger("x", "1"))
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// The server's principals apply here too.
func TestPrincipals(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("0123456789abcdef"), 0o600))
	f := start(t, `
principals: [{name: keda, token_file: `+token+`, deployments: [chat]}]
deployments: {chat: {replicas: [{id: a, address: "10.0.0.1:1"}]}, code: {replicas: [{id: b, address: "10.0.0.1:2"}]}}
`)
	_, err := f.IsActive(t.Context(), trigger("ongoingRequests", "1"))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer 0123456789abcdef")
	_, err = f.IsActive(ctx, trigger("ongoingRequests", "1"))
	require.NoError(t, err, "it may use one deployment")
	_, err = f.IsActive(ctx, trigger("ongoingRequests", "1", "deployment", "code"))
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}

// The trigger of the shipped ScaledObject is accepted.
func TestShippedTrigger(t *testing.T) {
	raw, err := os.ReadFile("../../../../deploy/kustomize/components/keda/scaledobject.yaml")
	require.NoError(t, err)
	var o struct {
		Spec struct {
			Triggers []struct{ Metadata map[string]string }
		}
	}
	require.NoError(t, yaml.Unmarshal(raw, &o))
	require.Len(t, o.Spec.Triggers, 1)
	f := start(t, two)
	ref := &externalscaler.ScaledObjectRef{ScalerMetadata: o.Spec.Triggers[0].Metadata}
	spec, err := f.GetMetricSpec(t.Context(), ref)
	require.NoError(t, err)
	require.Len(t, spec.GetMetricSpecs(), 2)
	for _, m := range spec.GetMetricSpecs() {
		require.Zero(t, f.value(t, m.GetMetricName(), ref))
	}
}

// The page on Kubernetes has a row for each key.
func TestPageNamesEveryKey(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/kubernetes.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "## Scale with KEDA")
	require.True(t, ok)
	var named []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		named = append(named, row[1])
	}
	require.ElementsMatch(t, append(slices.Collect(maps.Keys(metrics)), keyDeployment, keySpeed), named)
}
