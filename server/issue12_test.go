package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

const (
	three    = "replicas: [{id: a, address: '10.0.0.1:1'}, {id: b, address: '10.0.0.2:1'}, {id: c, address: '10.0.0.3:1'}]"
	query    = warmpathv1.PickMode_PICK_MODE_QUERY
	withHTTP = "http: {listen: '127.0.0.1:0'}\n"
)

func textKey(text string) *warmpathv1.RequestKey {
	return &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: text}}
}

// Issue 12.8: require_prompt refuses a request without a prompt, over gRPC and over HTTP, where the policy uses
// prompts.
func TestRequirePrompt(t *testing.T) {
	s := serve(t, withHTTP+"deployments: {chat: {require_prompt: true, policy: {kv_aware: {}}, "+three+"}}", nil)
	for _, mode := range []warmpathv1.PickMode{query, warmpathv1.PickMode_PICK_MODE_COUNT, warmpathv1.PickMode_PICK_MODE_RESERVE} {
		_, err := s.routing.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: mode})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, "require_prompt")
	}
	_, err := s.routing.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Key: textKey("Once upon a time")})
	require.NoError(t, err)
	code, answer := s.post(t, `{"model": "m"}`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, fmt.Sprint(answer), "require_prompt")
	code, _ = s.post(t, `{"model": "m", "prompt": "Once upon a time"}`)
	require.Equal(t, http.StatusOK, code)

	unused := serve(t, "deployments: {chat: {require_prompt: true, policy: {round_robin: {}}, "+three+"}}", nil)
	_, err = unused.routing.ChooseReplica(soon(t), new(warmpathv1.ChooseReplicaRequest))
	require.NoError(t, err)
}

// Issue 12.16: a deployment without replicas is NOT_SERVING until the first one, and the status has the reason.
func TestDeploymentWithoutReplicasDoesNotServe(t *testing.T) {
	s := serve(t, "deployments: {chat: {register: true}}", nil)
	health := healthpb.NewHealthClient(s.conn)
	watch, err := health.Watch(soon(t), &healthpb.HealthCheckRequest{Service: "chat"})
	require.NoError(t, err)
	expect := func(want healthpb.HealthCheckResponse_ServingStatus, reason string) {
		t.Helper()
		got, err := watch.Recv()
		require.NoError(t, err)
		require.Equal(t, want, got.GetStatus())
		a, err := health.Check(soon(t), &healthpb.HealthCheckRequest{Service: "chat"})
		require.NoError(t, err)
		require.Equal(t, want, a.GetStatus())
		st, err := s.status.GetStatus(soon(t), new(warmpathv1.GetStatusRequest))
		require.NoError(t, err)
		require.Contains(t, st.GetDeployments()[0].GetNotServing(), reason)
		require.Equal(t, want == healthpb.HealthCheckResponse_SERVING, st.GetDeployments()[0].GetNotServing() == "")
		whole, err := health.Check(soon(t), new(healthpb.HealthCheckRequest))
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, whole.GetStatus(), "replicas register with a server that serves")
	}
	expect(healthpb.HealthCheckResponse_NOT_SERVING, "no replicas")
	require.Len(t, s.log.lines(t, "does not serve"), 1)
	_, err = s.routing.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "127.0.0.1:1"}})
	require.NoError(t, err)
	expect(healthpb.HealthCheckResponse_SERVING, "")
	_, err = s.routing.Register(soon(t), &warmpathv1.RegisterRequest{Replica: &warmpathv1.Replica{Id: "r", Address: "127.0.0.1:1"}, Leaving: true})
	require.NoError(t, err)
	expect(healthpb.HealthCheckResponse_NOT_SERVING, "no replicas")
}

// Issue 12.22: a request can be restricted to some replicas, and returns candidates with their scores.
func TestAllowedAndCandidates(t *testing.T) {
	s := serve(t, "deployments: {chat: {policy: {kv_aware: {}}, "+three+"}}", nil)
	choose := func(r *warmpathv1.ChooseReplicaRequest) *warmpathv1.ChooseReplicaResponse {
		t.Helper()
		a, err := s.routing.ChooseReplica(soon(t), r)
		require.NoError(t, err)
		return a
	}
	for range 20 {
		a := choose(&warmpathv1.ChooseReplicaRequest{Allowed: []string{"b", "gone"}})
		require.Equal(t, "b", a.GetReplica().GetId())
		require.Empty(t, a.GetFallbacks(), "no other is allowed")
		require.Empty(t, a.GetCandidates())
	}
	long := make([]string, 0, 100)
	for i := range 100 {
		long = append(long, fmt.Sprint("gone-", i))
	}
	require.Equal(t, "c", choose(&warmpathv1.ChooseReplicaRequest{Allowed: append(long, "c")}).GetReplica().GetId())
	for _, r := range []*warmpathv1.ChooseReplicaRequest{{Allowed: long}, {Allowed: []string{"a"}, Excluded: []string{"a"}}, {Allowed: []string{"a"}, Pinned: "b"}} {
		_, err := s.routing.ChooseReplica(soon(t), r)
		require.Equal(t, codes.Unavailable, status.Code(err))
	}

	prompt := textKey(strings.Repeat("a long prompt that one replica has cached. ", 200))
	home := choose(&warmpathv1.ChooseReplicaRequest{Key: prompt, Allowed: []string{"c"}}).GetReplica().GetId()
	require.Equal(t, "c", home)
	a := choose(&warmpathv1.ChooseReplicaRequest{Key: prompt, Mode: query, MaxCandidates: 100})
	require.Len(t, a.GetCandidates(), 3)
	require.Equal(t, a.GetReplica().GetId(), a.GetCandidates()[0].GetReplica().GetId())
	scores := make(map[string]float64)
	for _, c := range a.GetCandidates() {
		d := c.GetDecision()
		scores[c.GetReplica().GetId()] = c.GetScore()
		require.InDelta(t, d.GetLoad()+float64(d.GetPromptTokens()-d.GetMatchedTokens()), c.GetScore(), 1)
		require.NotEmpty(t, d.GetReason())
	}
	require.Len(t, scores, 3)
	require.Len(t, choose(&warmpathv1.ChooseReplicaRequest{Key: prompt, Mode: query, MaxCandidates: 2, Allowed: []string{"a", "b"}}).GetCandidates(), 2)

	for _, r := range []*warmpathv1.ChooseReplicaRequest{
		{MaxCandidates: 1}, {Mode: query, MaxCandidates: 257}, {Allowed: make([]string, 1001)}, {Allowed: []string{strings.Repeat("x", 1000)}},
	} {
		_, err := s.routing.ChooseReplica(soon(t), r)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
}

// Issue 12.24: the server makes spans for requests over gRPC, on a stream and over HTTP. They continue the trace
// of the caller and have the decision's attributes.
func TestSpans(t *testing.T) {
	recorded := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(recorded))
	s := serve(t, withHTTP+"deployments: {chat: {policy: {round_robin: {}}, "+three+"}}", tracer)
	parent := func(n int) string { return fmt.Sprintf("00-%032x-%016x-01", n, n) }
	expect := func(n int, name string, failed bool) {
		t.Helper()
		var all tracetest.SpanStubs
		require.Eventually(t, func() bool { all = recorded.GetSpans(); return len(all) > 0 }, 30*time.Second, time.Millisecond)
		require.Len(t, all, 1)
		recorded.Reset()
		require.Equal(t, name, all[0].Name)
		require.Equal(t, fmt.Sprintf("%032x", n), all[0].SpanContext.TraceID().String())
		require.Equal(t, fmt.Sprintf("%016x", n), all[0].Parent.SpanID().String())
		has := attribute.NewSet(all[0].Attributes...)
		reason, decided := has.Value("warmpath.reason")
		require.Equal(t, !failed, decided)
		if failed {
			require.NotEmpty(t, all[0].Status.Description)
			return
		}
		require.Equal(t, "round_robin", reason.AsString())
		policy, _ := has.Value("warmpath.policy")
		require.Equal(t, "round_robin", policy.AsString())
		replica, _ := has.Value("warmpath.replica")
		require.Contains(t, "abc", replica.AsString())
	}
	const method = "warmpath.v1.RoutingService/ChooseReplica"
	ctx := metadata.AppendToOutgoingContext(soon(t), "traceparent", parent(1))
	_, err := s.routing.ChooseReplica(ctx, new(warmpathv1.ChooseReplicaRequest))
	require.NoError(t, err)
	expect(1, method, false)
	_, err = s.routing.ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{Excluded: []string{"a", "b", "c"}})
	require.Error(t, err)
	expect(1, method, true)

	stream, err := s.routing.ChooseReplicas(metadata.AppendToOutgoingContext(soon(t), "traceparent", parent(2)))
	require.NoError(t, err)
	for n, own := range map[int]string{2: "", 3: parent(3)} {
		require.NoError(t, stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Traceparent: own}}))
		_, err = stream.Recv()
		require.NoError(t, err)
		expect(n, method, false)
	}
	require.NoError(t, stream.CloseSend())

	code, _ := s.post(t, `{"prompt": "Once"}`, "Traceparent", parent(4))
	require.Equal(t, http.StatusOK, code)
	expect(4, "POST /internal/route", false)
	code, _ = s.post(t, "", "Traceparent", parent(5), "X-Warmpath-Deployment", "none")
	require.Equal(t, http.StatusNotFound, code)
	expect(5, "POST /internal/route", true)
	require.NoError(t, tracer.Shutdown(context.Background()))
}

// A call without a valid token makes no span, over HTTP neither.
func TestRefusedCallsMakeNoSpans(t *testing.T) {
	recorded := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(recorded))
	s := serve(t, withHTTP+"principals: [{name: one, token: one-0123456789abcd}]\ndeployments: {chat: {"+three+"}}", tracer)
	_, err := s.routing.ChooseReplica(soon(t), new(warmpathv1.ChooseReplicaRequest))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	code, _ := s.post(t, "")
	require.Equal(t, http.StatusUnauthorized, code)
	code, _ = s.post(t, "", "Authorization", "Bearer one-0123456789abcd")
	require.Equal(t, http.StatusOK, code)
	require.Eventually(t, func() bool { return len(recorded.GetSpans()) > 0 }, 30*time.Second, time.Millisecond)
	require.Len(t, recorded.GetSpans(), 1)
	require.NoError(t, tracer.Shutdown(context.Background()))
}

// Issue 12.25: the start of a deployment is logged in one line. Requests without the key that its policy needs are
// logged once as a warning, over gRPC and over HTTP.
func TestStartAndMissingKeysAreLogged(t *testing.T) {
	s := serve(t, withHTTP+"deployments: {chat: {policy: {kv_aware: {}}, session_keys: [user], max_ongoing_requests: 7, mode: central, "+three+"}}", nil)
	lines := s.log.lines(t, "the deployment starts")
	require.Len(t, lines, 1)
	for field, want := range map[string]any{
		"deployment": "chat", "policy": "kv_aware", "mode": "central", "replicas": 3.0, "session_keys": []any{"user"},
		"settings": `{"max_ongoing_requests":7}`,
	} {
		require.Equal(t, want, lines[0][field], field)
	}
	require.Empty(t, s.log.lines(t, "no key"))
	for range 3 {
		_, err := s.routing.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Key: textKey("Once")})
		require.NoError(t, err)
	}
	require.Empty(t, s.log.lines(t, "no key"))
	for range 3 {
		code, _ := s.post(t, "")
		require.Equal(t, http.StatusOK, code)
		_, err := s.routing.ChooseReplica(soon(t), new(warmpathv1.ChooseReplicaRequest))
		require.NoError(t, err)
	}
	require.Len(t, s.log.lines(t, "no key"), 1)
}

// Issue 12.37: from registrations the server takes only addresses to dial, on the replica's host or one that the
// config allows, and few ranks.
func TestRegistrationsDoNotOpenPorts(t *testing.T) {
	const text = "deployments: {chat: {register: true, policy: {kv_aware: {}}EXTRA}}"
	for name, tt := range map[string]struct {
		extra   string
		replica *warmpathv1.Replica
		want    string // in the error; empty = taken
	}{
		"listens":           {"", &warmpathv1.Replica{KvEvents: "tcp://*:30000", Ranks: 2}, "kv_events"},
		"listens, any host": {", register_event_hosts: ['*']", &warmpathv1.Replica{KvEvents: "tcp://*:30000"}, "kv_events"},
		"other host":        {"", &warmpathv1.Replica{KvEvents: "tcp://10.9.9.9:5557"}, "register_event_hosts"},
		"other replay":      {"", &warmpathv1.Replica{KvEvents: "tcp://10.0.0.1:5557", KvEventsReplay: "tcp://10.9.9.9:5558"}, "kv_events_replay"},
		"ranks":             {"", &warmpathv1.Replica{Ranks: 1024}, "ranks"},
		"own":               {"", &warmpathv1.Replica{KvEvents: "tcp://10.0.0.1:5557", KvEventsReplay: "tcp://HOST:5558", Ranks: 8}, ""},
		"HOST":              {"", &warmpathv1.Replica{KvEvents: "tcp://HOST:5557"}, ""},
		"its connection's":  {"", &warmpathv1.Replica{KvEvents: "tcp://127.0.0.1:5557"}, ""},
		"allowed":           {", register_event_hosts: [10.9.9.9]", &warmpathv1.Replica{KvEvents: "tcp://10.9.9.9:5557"}, ""},
		"any":               {", register_event_hosts: ['*']", &warmpathv1.Replica{KvEvents: "tcp://10.9.9.9:5557"}, ""},
		"over gRPC":         {"", &warmpathv1.Replica{KvEvents: "grpc:vllm"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, strings.Replace(text, "EXTRA", tt.extra, 1), nil)
			tt.replica.Id, tt.replica.Address = "r", "10.0.0.1:50051"
			_, err := s.routing.Register(soon(t), &warmpathv1.RegisterRequest{Replica: tt.replica})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			require.ErrorContains(t, err, tt.want)
			free, err := s.status.GetStatus(soon(t), new(warmpathv1.GetStatusRequest))
			require.NoError(t, err)
			require.Empty(t, free.GetDeployments()[0].GetReplicas())
		})
	}
	_, err := server.ParseConfig([]byte("deployments: {chat: {register: true, register_event_hosts: ['']}}"))
	require.ErrorContains(t, err, "deployments.chat: register_event_hosts")
}
