package httpendpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/requestkey"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// oracle returns a fixed answer, and keeps the request.
type oracle struct {
	answer *warmpathv1.ChooseReplicaResponse
	err    error

	mu      sync.Mutex // guards request
	request *warmpathv1.ChooseReplicaRequest
}

func (o *oracle) ChooseReplica(_ context.Context, r *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.request = r
	return o.answer, o.err
}

func (o *oracle) Reading(_ context.Context, deployment, model string) endpoint.Reading {
	var c policy.Config
	if deployment == "own" || model == "own" {
		c.SessionKeys = []string{"x-chat"}
	}
	r, err := endpoint.NewReading(c)
	if err != nil {
		panic(err)
	}
	return r
}

func (o *oracle) question() *warmpathv1.ChooseReplicaRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.request
}

func chosen(address string) *warmpathv1.ChooseReplicaResponse {
	return &warmpathv1.ChooseReplicaResponse{
		Deployment: "chat", Replica: &warmpathv1.ChosenReplica{Id: "r<1>", Address: address},
		Decision: &warmpathv1.Decision{Reason: "ring"},
	}
}

func newHandler(t testing.TB, o *oracle, change func(*Config)) http.Handler {
	t.Helper()
	var c Config
	if change != nil {
		change(&c)
	}
	return NewHandler(c, o, func() bool { return true })
}

func ask(h http.Handler, body string, headers ...string) *httptest.ResponseRecorder {
	return askWith(h, strings.NewReader(body), headers...)
}

func askWith(h http.Handler, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, RoutePath, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = append(r.Header[headers[i]], headers[i+1]) // spelled as it is
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestAnswer(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:8000":    `{"replica_id":"r<1>","host":"10.0.0.1","port":8000,"deployment":"chat"}`,
		"[2001:db8::1]:80": `{"replica_id":"r<1>","host":"2001:db8::1","port":80,"deployment":"chat"}`,
	} {
		w := ask(newHandler(t, &oracle{answer: chosen(address)}, nil), `{"prompt":"hi"}`)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, want+"\n", w.Body.String())
		require.Equal(t, "ring", w.Header().Get(HeaderReason))
		require.Equal(t, "whole", w.Header().Get(HeaderBody))
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	}
	ranked := chosen("h:1")
	ranked.Replica.Rank = proto.Uint32(3)
	w := ask(newHandler(t, &oracle{answer: ranked}, nil), "")
	require.JSONEq(t, `{"replica_id":"r<1>","host":"h","port":1,"deployment":"chat","request_headers":{"x-data-parallel-rank":"3"}}`, w.Body.String())
	require.Equal(t, "none", w.Header().Get(HeaderBody))

	pair := &oracle{answer: chosen("d:1")}
	pair.answer.Prefill = &warmpathv1.ChosenReplica{Id: "p", Address: "p:1", KvBootstrap: "p:8998", KvEngineId: "e"}
	w = ask(newHandler(t, pair, nil), "", HeaderPair, "1")
	require.True(t, pair.question().GetPair())
	require.JSONEq(t, `{"replica_id":"r<1>","host":"d","port":1,"deployment":"chat",
		"prefill":{"replica_id":"p","host":"p","port":1,"kv_bootstrap":"p:8998","kv_engine_id":"e"}}`, w.Body.String())
	pair.answer.Prefill.Address = "p"
	require.Equal(t, http.StatusServiceUnavailable, ask(newHandler(t, pair, nil), "", HeaderPair, "1").Code)
}

func later(after time.Duration) error {
	return &endpoint.LaterError{Err: status.Error(codes.ResourceExhausted, "all are full"), After: after}
}

// Every refusal has a status, a reason, and the message in OpenAI's form.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		err    error
		code   int
		reason string
		after  string
	}{
		{status.Error(codes.InvalidArgument, "name a deployment"), 400, "invalid_request", ""},
		{status.Error(codes.Unauthenticated, "no token"), 401, "unauthenticated", ""},
		{status.Error(codes.PermissionDenied, "not yours"), 403, "forbidden", ""},
		{status.Error(codes.NotFound, "no such model"), 404, "unknown_model", ""},
		{status.Error(codes.Unavailable, "no replica is there"), 503, "no_replica", "1"},
		{status.Error(codes.ResourceExhausted, "all are full"), 503, "full", "1"},
		{later(2001 * time.Millisecond), 503, "full", "3"},
		{later(2 * time.Hour), 503, "full", "60"},
		{status.FromContextError(context.Canceled).Err(), 503, "canceled", ""},
		{status.FromContextError(context.DeadlineExceeded).Err(), 503, "canceled", ""},
		{errors.New("what?"), 500, "internal", ""},
	} {
		w := ask(newHandler(t, &oracle{err: tt.err}, nil), "")
		require.Equal(t, tt.code, w.Code, tt.err)
		require.Equal(t, tt.reason, w.Header().Get(HeaderReason))
		var body struct {
			Error struct{ Message, Type, Code string }
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
		require.Equal(t, tt.reason, body.Error.Code)
		require.Equal(t, status.Convert(tt.err).Message(), body.Error.Message)
		require.Equal(t, tt.after, w.Header().Get("Retry-After"))
	}
	for _, address := range []string{"", "host", "unix:/x", ":80", "h:http", "h:99999"} {
		w := ask(newHandler(t, &oracle{answer: chosen(address)}, nil), "")
		require.Equal(t, 503, w.Code, address)
		require.Equal(t, "no_address", w.Header().Get(HeaderReason))
	}
	for _, body := range []string{`{"model":17}`, `{"model":["a"],"messages":[]}`, `{"model":{},"messages":[{"role":"user","content":"cut he`} {
		o := &oracle{answer: chosen("h:1")}
		w := ask(newHandler(t, o, nil), body)
		require.Equal(t, 400, w.Code, body)
		require.Equal(t, "invalid_request", w.Header().Get(HeaderReason))
		require.Nil(t, o.question(), "the chooser is not called")
	}
}

func TestPathsAndMethods(t *testing.T) {
	serving := true
	h := NewHandler(Config{}, &oracle{answer: chosen("h:1")}, func() bool { return serving })
	for _, tt := range []struct {
		method, path string
		serving      bool
		code         int
		reason       string
	}{
		{"POST", "/internal/route", true, 200, "ring"},
		{"GET", "/internal/route", true, 405, "method_not_allowed"},
		{"PUT", "/internal/route", true, 405, "method_not_allowed"},
		{"POST", "/internal/route/", true, 404, "unknown_path"},
		{"GET", "/", true, 404, "unknown_path"},
		{"GET", "/healthz", true, 200, ""},
		{"HEAD", "/healthz", true, 200, ""},
		{"GET", "/healthz", false, 503, "shutting_down"},
	} {
		serving = tt.serving
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, nil))
		require.Equal(t, tt.code, w.Code, tt)
		require.Equal(t, tt.reason, w.Header().Get(HeaderReason), tt)
	}
}

// The key comes from headers and body, headers first.
func TestQuestion(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		headers    []string
		want       *warmpathv1.RequestKey
	}{
		{"nothing", "", nil, &warmpathv1.RequestKey{}},
		{"session header", "", []string{"X-Session-Id", "s"}, &warmpathv1.RequestKey{Session: "s"}},
		{"other case and underscores", "", []string{"x_SESSION_id", "s"}, &warmpathv1.RequestKey{Session: "s"}},
		{"Claude Code", "", []string{"X-Claude-Code-Session-Id", "s", "X-Claude-Code-Agent-Id", "a"},
			&warmpathv1.RequestKey{Session: "s/a", ParentSession: "s"}},
		{"Dynamo", "", []string{"X-Dynamo-Session-ID", "d", "X-Dynamo-Parent-Session-ID", "p", "X-Dynamo-Session-Final", "true"},
			&warmpathv1.RequestKey{Session: "p/d", ParentSession: "p", SessionFinal: true}},
		{"long session", "", []string{"X-Session-Id", strings.Repeat("s", 300)}, &warmpathv1.RequestKey{Session: strings.Repeat("s", 300)}},
		{"request id", "", []string{"X-Request-Id", "i"}, &warmpathv1.RequestKey{RequestId: "i"}},
		{"header before body", `{"user":"u"}`, []string{"X-Session-Id", "s"}, &warmpathv1.RequestKey{Session: "s"}},
		{"body", `{"model":"m:ada","user":"u","cache_salt":"c","max_tokens":7,"request_id":"i"}`, nil,
			&warmpathv1.RequestKey{Model: "m:ada", Session: "u", CacheSalt: "c", RequestId: "i"}},
		{"completion", `{"prompt":"hello"}`, nil, &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: "hello"}}},
		{"tokens", `{"prompt":[1,2,3]}`, nil, &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: []uint32{1, 2, 3}}}}},
		{"chat", `{"messages":[{"role":"user","content":"hi"}]}`, nil, &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: "\xffuser\xfethi"}}},
		{"no turns", `{"messages":[]}`, nil, &warmpathv1.RequestKey{}},
		{"no prompt", `{"prompt":""}`, nil, &warmpathv1.RequestKey{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &oracle{answer: chosen("h:1")}
			w := ask(newHandler(t, o, nil), tt.body, append(tt.headers, "X-Warmpath-Deployment", "chat", "X-Warmpath-Exclude", "a, b", "X-Warmpath-Exclude", "c,")...)
			require.Equal(t, http.StatusOK, w.Code)
			want := &warmpathv1.ChooseReplicaRequest{Deployment: "chat", Key: tt.want, Mode: warmpathv1.PickMode_PICK_MODE_COUNT, Excluded: []string{"a", "b", "c"}}
			require.Equal(t, fmt.Sprint(want), fmt.Sprint(o.question()))
		})
	}
	o := &oracle{answer: chosen("h:1")}
	ask(newHandler(t, o, nil), "", "User-Key", "no", "X_Session_Id", "yes")
	require.Equal(t, "yes", o.question().GetKey().GetSession())
}

// The session_keys of the deployment that is named, or that serves the model, come first, and x-session-id behind them.
func TestSessionKeys(t *testing.T) {
	for _, tt := range []struct {
		body    string
		headers []string
		want    string
	}{
		{"", []string{"X-Warmpath-Deployment", "own", "X-Chat", "c", "X-Session-Id", "s"}, "c"},
		{`{"model":"own","user":"u"}`, []string{"X-Chat", "c", "X-Session-Id", "s"}, "c"},
		{`{"model":"own","user":"u"}`, []string{"X-Session-Id", "s"}, "s"},
		{`{"model":"own","user":"u"}`, nil, "u"},
		{`{"model":"other","user":"u"}`, []string{"X-Chat", "c"}, "u"},
	} {
		o := &oracle{answer: chosen("h:1")}
		require.Equal(t, http.StatusOK, ask(newHandler(t, o, nil), tt.body, tt.headers...).Code)
		require.Equal(t, tt.want, o.question().GetKey().GetSession(), "%v", tt)
	}
}

// A page of another site gets no answer. Programs send no such headers.
func TestOtherSites(t *testing.T) {
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site", "Origin", "https://elsewhere.example"},
		{"Sec-Fetch-Site", "same-site", "Origin", "http://other.example"},
		{"Origin", "https://elsewhere.example"},
	} {
		o := &oracle{answer: chosen("h:1")}
		w := ask(newHandler(t, o, nil), `{"user":"u"}`, headers...)
		require.Equal(t, http.StatusForbidden, w.Code)
		require.Equal(t, "cross_origin", w.Header().Get(HeaderReason))
		require.Nil(t, o.question())
	}
}

// The part of a body that arrived decides, and the answer shows that it was not whole.
func TestBodies(t *testing.T) {
	const whole = `{"model":"m","messages":[{"role":"user","content":"hello world"}]}`
	cut := errors.New("connection reset")
	for _, tt := range []struct {
		name    string
		body    io.Reader
		headers []string
		state   endpoint.BodyState
		text    string
	}{
		{"none", strings.NewReader(""), nil, endpoint.BodyNone, ""},
		{"none, marked as cut", strings.NewReader(""), []string{"X-Body-Truncated", "0/9"}, endpoint.BodyNone, ""},
		{"whole", strings.NewReader(whole), nil, endpoint.BodyWhole, "\xffuser\xfethello world"},
		{"cut by the caller", strings.NewReader(whole[:58]), nil, endpoint.BodyTruncated, "\xffuser\xfethello w"},
		{"cut out of sight", strings.NewReader(whole), []string{"X-Body-Truncated", "66/70"}, endpoint.BodyTruncated, "\xffuser\xfethello world"},
		{"reading failed", io.MultiReader(strings.NewReader(whole[:58]), iotest.ErrReader(cut)), nil, endpoint.BodyTruncated, "\xffuser\xfethello w"},
		{"nothing came", iotest.ErrReader(cut), nil, endpoint.BodyTruncated, ""},
		{"too long", strings.NewReader(`{"prompt":"` + strings.Repeat("x", 5000)), nil, endpoint.BodyTruncated, strings.Repeat("x", 2000-11)},
		{"a list", strings.NewReader(`[1,2]`), nil, endpoint.BodyUnreadable, ""},
		{"gzip", strings.NewReader("\x1f\x8b\x08"), nil, endpoint.BodyUnreadable, ""},
		{"text", strings.NewReader("hello"), nil, endpoint.BodyUnreadable, ""},
		{"blanks", strings.NewReader(" \n"), nil, endpoint.BodyTruncated, ""},
		{"broken", strings.NewReader(`{"prompt":"hello" "x":1}`), nil, endpoint.BodyTruncated, "hello"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &oracle{answer: chosen("h:1")}
			w := askWith(newHandler(t, o, func(c *Config) { c.MaxBodyBytes = 2000 }), tt.body, tt.headers...)
			require.Equal(t, http.StatusOK, w.Code)
			require.Equal(t, string(tt.state), w.Header().Get(HeaderBody))
			require.Equal(t, tt.state == endpoint.BodyTruncated, strings.Contains(w.Body.String(), `"truncated":true`))
			require.Equal(t, tt.text, o.question().GetKey().GetText())
		})
	}
}

func TestConfig(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"max_body_bytes": func(c *Config) { c.MaxBodyBytes = 10 },
		"read_timeout":   func(c *Config) { c.ReadTimeout = policy.Duration(2 * time.Hour) },
	} {
		var c Config
		require.NoError(t, c.Validate())
		change(&c)
		require.ErrorContains(t, c.Validate(), field+": ")
	}
}

// Whatever is sent, the answer is a pick or a refusal with a reason, and the key is one that the server accepts.
func FuzzQuestion(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"user":"u"}`,
		`{"prompt":[[1,2],[3]],"max_tokens":-1,"model":3}`, `{"prompt":"\ud83d`, `[`, "", `{"session_params":{"id":"x"},"tools":[{}]}`,
	} {
		f.Add([]byte(body), "s", "1/2")
	}
	o := &oracle{answer: chosen("h:1")}
	var c Config
	h := NewHandler(c, o, func() bool { return true })
	f.Fuzz(func(t *testing.T, body []byte, session, truncated string) {
		w := ask(h, string(body), "X-Session-Id", session, "X-Body-Truncated", truncated)
		require.Contains(t, []int{200, 400}, w.Code)
		require.NotEmpty(t, w.Header().Get(HeaderReason))
		require.NotEmpty(t, w.Header().Get(HeaderBody))
		require.True(t, json.Valid(w.Body.Bytes()))
		if w.Code == http.StatusOK {
			k := o.question().GetKey()
			require.LessOrEqual(t, len(k.GetSession()), requestkey.MaxSession)
			require.LessOrEqual(t, len(k.GetRequestId()), requestkey.MaxSession)
			require.LessOrEqual(t, len(k.GetText()), 16*len(body)+16, "a part of two bytes becomes a hash")
		}
	})
}
