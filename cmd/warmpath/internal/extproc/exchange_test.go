package extproc_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
)

// A request in the order of the protocol: pick, response, release.
func TestPick(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	text := prompt(strings.Repeat("the same beginning ", 200))
	var first []string
	for range 3 {
		g := p.open(t, duplex)
		g.headers(chatHeaders(), nil, false)
		g.body(text, true)
		got := g.picked()
		require.Len(t, got, 3, "with two fallbacks")
		require.Equal(t, r.chose, got, "in the policy's order")
		g.echoed(text, true)
		if first == nil {
			first = got
		}
		require.Equal(t, first[0], got[0], "the prefix decides")
		require.EqualValues(t, 1, p.deployment(t).GetReservations())
		g.responds("200", "application/json", got[0], false)
		g.chunk(`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, true)
		p.idle(t)
		g.done()
	}
}

// The bodies of OpenAI's four APIs are parsed, and other bodies are not.
func TestBodies(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	for path, c := range map[string]struct{ body, text string }{
		"/v1/chat/completions": {`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "hello"},
		"/v1/completions":      {`{"model":"m","prompt":"hello"}`, "hello"},
		"/v1/responses":        {`{"model":"m","instructions":"be kind","input":"hello"}`, "hello"},
		"/v1/embeddings":       {`{"model":"m","input":["hello"]}`, "hello"},
		"/v1/files":            {"hello", ""},
	} {
		t.Run(path, func(t *testing.T) {
			g := p.open(t, duplex)
			g.headers(chatHeaders(":path", path), nil, false)
			g.body(c.body, true)
			g.picked()
			g.echoed(c.body, true)
			g.responds("200", "application/json", "", true)
			g.done()
			require.Contains(t, r.last().GetKey().GetText(), c.text)
			require.Equal(t, c.text == "", r.last().GetKey().GetText() == "")
			require.Equal(t, c.text != "", r.last().GetKey().GetModel() == "m")
		})
	}
	p.idle(t)
}

// Chunks come back in order after the answer to the headers, and so do trailers.
func TestChunksAndTrailers(t *testing.T) {
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, nil)
	text := prompt(strings.Repeat("long ", 60_000))
	for _, withTrailers := range []bool{false, true} {
		for _, size := range []int{1 << 20, 50_000, 4000} {
			g := p.open(t, duplex)
			g.headers(chatHeaders("x-request-id", "the same"), nil, false)
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				g.body(rest[:n], n == len(rest) && !withTrailers)
				rest = rest[n:]
			}
			if withTrailers {
				g.trailers()
			}
			g.picked()
			g.echoed(text, !withTrailers)
			if withTrailers {
				require.NotNil(t, g.next().GetRequestTrailers())
			}
			g.responds("200", "text/event-stream", "", false)
			g.chunk("data: {}\n\n", false)
			g.chunk(strings.Repeat("x", 200_000), false)
			if withTrailers {
				g.chunk("", false)
				g.responseTrailers()
			} else {
				g.chunk("", true)
			}
			g.done()
		}
	}
	p.idle(t)
}

// In the other modes the answer to the headers comes at once. A buffered body is still read.
func TestModes(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	for _, mode := range []modev3.ProcessingMode_BodySendMode{modev3.ProcessingMode_BUFFERED, modev3.ProcessingMode_BUFFERED_PARTIAL} {
		g := p.open(t, mode)
		g.headers(chatHeaders(), nil, false)
		a := g.next()
		require.NotNil(t, a.GetRequestHeaders())
		require.Nil(t, a.GetDynamicMetadata())
		g.body(prompt("hello"), true)
		a = g.next()
		require.Len(t, g.pickOf(a, a.GetRequestBody().GetResponse()), 3)
		require.Nil(t, a.GetRequestBody().GetResponse().GetBodyMutation())
		require.Contains(t, r.last().GetKey().GetText(), "hello")
		g.responds("200", "application/json", "", false)
		g.chunk(`{"usage":{"prompt_tokens":5}}`, true)
		g.done()
		require.EqualValues(t, 5, r.outcome().GetPromptTokens())
	}
	for _, mode := range []modev3.ProcessingMode_BodySendMode{modev3.ProcessingMode_NONE, modev3.ProcessingMode_STREAMED} {
		g := p.open(t, mode)
		g.headers(chatHeaders("x-session-id", "s"), nil, false)
		g.picked()
		require.Equal(t, "s", r.last().GetKey().GetSession())
		if mode == modev3.ProcessingMode_STREAMED {
			g.body("{}", true)
			require.Nil(t, g.next().GetRequestBody().GetResponse().GetBodyMutation())
		}
		g.responds("200", "application/json", "", false)
		g.done()
	}
	g := p.open(t, duplex) // without a body
	g.headers(chatHeaders(), nil, true)
	g.picked()
	g.responds("204", "", "", true)
	g.done()
	p.idle(t)

	for field, m := range map[string]*extprocv3.ProcessingRequest{
		"observability_mode": {ObservabilityMode: true},
		"processing_mode":    {ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: modev3.ProcessingMode_GRPC}},
	} {
		g := p.open(t, duplex)
		g.send <- m
		_, open := <-g.got
		require.False(t, open)
		require.Equal(t, codes.FailedPrecondition, status.Code(g.err))
		require.ErrorContains(t, g.err, field)
	}
}

func TestSubset(t *testing.T) {
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, nil)
	for name, c := range map[string]struct {
		subset any
		want   []string // nil = 503
	}{
		"list":            {[]any{"10.0.0.2:8000", "10.0.0.3:8000"}, []string{"10.0.0.2:8000", "10.0.0.3:8000"}},
		"string":          {"10.0.0.3:8000, 10.0.0.2:8000", []string{"10.0.0.2:8000", "10.0.0.3:8000"}},
		"one":             {[]any{"10.0.0.2:8000"}, []string{"10.0.0.2:8000"}},
		"IP":              {[]any{"10.0.0.2"}, []string{"10.0.0.2:8000"}},
		"others unknown":  {[]any{"10.9.9.9:1", "10.0.0.1:8000"}, []string{"10.0.0.1:8000"}},
		"another port":    {[]any{"10.0.0.1:8001"}, nil},
		"unknown":         {"10.9.9.9:1", nil},
		"empty list":      {[]any{}, nil},
		"empty string":    {"", nil},
		"neither of them": {17, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				g := p.open(t, duplex)
				g.headers(chatHeaders(), c.subset, false)
				g.body(prompt(t.Name()), true)
				if c.want == nil {
					code, reason := g.refused()
					require.Equal(t, 503, code)
					require.Equal(t, "no_replica", reason)
				} else {
					require.ElementsMatch(t, c.want, g.picked(), "the fallbacks, too")
					g.echoed(prompt(t.Name()), true)
				}
				g.done()
			}
			p.idle(t)
		})
	}
}

func TestRefusals(t *testing.T) {
	full := startPicker(t, strings.Replace(fleet, "policy:", "max_ongoing_requests: 1\n    models: [m]\n    policy:", 1), extproc.Options{Fallbacks: 2}, nil)
	for range 3 {
		g := full.open(t, duplex)
		g.headers(chatHeaders(), nil, true)
		g.picked()
	}
	none := startPicker(t, "deployments: {chat: {register: true}}", extproc.Options{Deployment: "chat"}, nil)
	for name, c := range map[string]struct {
		p      *picker
		body   string
		code   int
		reason string
		grpc   codes.Code
	}{
		"full":            {full, prompt("x"), 429, "full", codes.ResourceExhausted},
		"no replica":      {none, prompt("x"), 503, "no_replica", codes.Unavailable},
		"unknown model":   {full, `{"model":"other"}`, 404, "unknown_model", 0},
		"model no string": {full, `{"model":1}`, 400, "invalid_request", 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.p.deployment(t).GetReservations()
			g := c.p.open(t, duplex)
			g.headers(chatHeaders(), nil, false)
			g.body(c.body, true)
			a := g.next().GetImmediateResponse()
			require.Contains(t, string(a.GetBody()), `"code":"`+c.reason+`"`)
			require.Nil(t, a.GetGrpcStatus())
			require.Equal(t, c.grpc != 0, slices.ContainsFunc(a.GetHeaders().GetSetHeaders(), func(h *corev3.HeaderValueOption) bool {
				return h.GetHeader().GetKey() == "retry-after" && string(h.GetHeader().GetRawValue()) == "1"
			}))
			g.got <- &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: a}}
			code, reason := g.refused()
			require.Equal(t, c.code, code)
			require.Equal(t, c.reason, reason)
			g.done()

			if c.grpc != 0 {
				g = c.p.open(t, duplex)
				g.headers(map[string]string{":path": "/vllm.Generate/Generate", "content-type": "application/grpc+proto"}, nil, false)
				g.body("\x00\x00\x00\x00\x00", true)
				require.EqualValues(t, c.grpc, g.next().GetImmediateResponse().GetGrpcStatus().GetStatus())
				g.done()
			}
			require.Equal(t, before, c.p.deployment(t).GetReservations())
		})
	}
}

// The load goes to the replica that served. If the gateway abandoned the pick, its replica gets a failure.
func TestServed(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	ongoing := func() map[string]uint32 {
		all := make(map[string]uint32)
		for _, x := range p.deployment(t).GetReplicas() {
			if x.GetOngoing() > 0 {
				all[x.GetAddress()] = x.GetOngoing()
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		served func(picks []string) string
		at     int // in the picks; -1 = nowhere
	}{
		"the pick":     {func(picks []string) string { return picks[0] }, 0},
		"not reported": {func([]string) string { return "" }, 0},
		"a fallback":   {func(picks []string) string { return picks[2] }, 2},
		"another one":  {func([]string) string { return "10.9.9.9:1" }, -1},
	} {
		t.Run(name, func(t *testing.T) {
			g := p.open(t, duplex)
			g.headers(chatHeaders(), nil, false)
			g.body(prompt("x"), true)
			picks := g.picked()
			g.echoed(prompt("x"), true)
			g.responds("200", "application/json", c.served(picks), false)
			want := map[string]uint32{}
			if c.at >= 0 {
				want[picks[c.at]] = 1
			}
			require.Eventually(t, func() bool { return maps.Equal(want, ongoing()) }, 30*time.Second, time.Millisecond)
			if c.at != 0 {
				require.EqualValues(t, codes.Unavailable, r.outcome().GetCode())
				require.True(t, r.outcome().GetSent())
			}
			g.chunk("{}", true)
			if c.at >= 0 {
				require.Zero(t, r.outcome().GetCode())
			}
			p.idle(t)
			g.done()
		})
	}
}

// A replica that fails gateways' requests is ejected.
func TestOutliers(t *testing.T) {
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, nil)
	const failed = "10.0.0.2:8000"
	for range 5 {
		g := p.open(t, duplex)
		g.headers(chatHeaders(), failed, true)
		require.Equal(t, []string{failed}, g.picked())
		g.responds("503", "application/json", failed, false)
		g.chunk("{}", true)
		g.done()
	}
	require.Eventually(t, func() bool {
		return p.deployment(t).GetReplicas()[1].GetState() == "ejected"
	}, 30*time.Second, time.Millisecond)
	for range 5 {
		g := p.open(t, duplex)
		g.headers(chatHeaders(), nil, true)
		require.NotContains(t, g.picked(), failed)
		g.responds("200", "application/json", "", true)
		g.done()
	}
}

func TestHealth(t *testing.T) {
	p := startPicker(t, "deployments: {chat: {register: true}}", extproc.Options{Deployment: "chat"}, nil)
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_SERVING, "liveness": healthpb.HealthCheckResponse_SERVING,
		"readiness": healthpb.HealthCheckResponse_NOT_SERVING,
		"envoy.service.ext_proc.v3.ExternalProcessor": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		a, err := p.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		require.Equal(t, want, a.GetStatus(), service)
	}
	_, err := p.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	require.Equal(t, codes.NotFound, status.Code(err))
	p = startPicker(t, fleet, extproc.Options{Deployment: "chat"}, nil)
	a, err := p.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "readiness"})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, a.GetStatus())
}

// NGINX Gateway Fabric takes one address and sends no response messages. Its header names have Go's spelling, and
// their values are text.
func TestGatewayThatShowsNoResponse(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{}, r.wrap)
	g := p.open(t, duplex)
	g.send <- &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: "Content-Type", Value: "application/json"}, {Key: "X-Session-Id", Value: "s"}, {Key: "X-Request-Id", Value: "r"},
		}}},
	}}
	g.body(prompt("hello"), true)
	g.halfClose()
	require.Len(t, g.picked(), 1, "it takes one address")
	g.echoed(prompt("hello"), true)
	g.done()
	require.Equal(t, "s", r.last().GetKey().GetSession())
	require.Equal(t, "r", r.last().GetKey().GetRequestId())
	require.Empty(t, r.reports(), "its end is not reported")
	require.EqualValues(t, 1, p.deployment(t).GetReservations())
}

// If the option is on, conformance tests choose the endpoint and see which endpoint served.
func TestConformanceHeader(t *testing.T) {
	for _, on := range []bool{true, false} {
		p := startPicker(t, fleet, extproc.Options{Fallbacks: 2, ForTests: on}, nil)
		for _, list := range []string{"10.0.0.1", "10.0.0.2:8000", "10.0.0.3:8000, 10.0.0.1"} {
			g := p.open(t, duplex)
			g.headers(chatHeaders("test-epp-endpoint-selection", list), nil, true)
			got := g.picked()
			if on {
				require.Len(t, got, len(strings.Split(list, ",")))
				for i, at := range got {
					require.Contains(t, list, strings.TrimSuffix(at, ":8000"), i)
				}
			} else {
				require.Len(t, got, 3)
			}
			set := g.responds("200", "text/plain", got[0], true).GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders()
			if on {
				require.Equal(t, "x-conformance-test-served-endpoint", set[0].GetHeader().GetKey())
				require.Equal(t, got[0], string(set[0].GetHeader().GetRawValue()))
			} else {
				require.Empty(t, set)
			}
			g.done()
		}
	}
}
