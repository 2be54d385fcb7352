package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// httpServer is a server with an HTTP endpoint.
type httpServer struct {
	fixture
	addr string
}

const withHTTP = "http: {listen: '127.0.0.1:0'}\n"

func startHTTP(t testing.TB, text string, log *slog.Logger) *httpServer {
	t.Helper()
	d := &httpServer{fixture: fixture{clock: newClock()}}
	var err error
	d.Server, err = New(parse(t, text), Options{Logger: log, now: d.clock.now})
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d.addr = lis.Addr().String()
	served := make(chan error, 1)
	go func() { served <- d.ServeRoutes(lis) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		d.Close()
		require.NoError(t, <-served)
	})
	return d
}

// route makes a request, and returns the answer with its status and reason.
func (d *httpServer) route(t testing.TB, body io.Reader, headers ...string) (to httpendpoint.Destination, code int, reason string) {
	t.Helper()
	r, err := http.NewRequestWithContext(soon(t), http.MethodPost, "http://"+d.addr+httpendpoint.RoutePath, body)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer a.Body.Close()
	require.NoError(t, json.NewDecoder(a.Body).Decode(&to))
	return to, a.StatusCode, a.Header.Get(httpendpoint.HeaderReason)
}

// A pick counts for a time, so a caller that only picks does not send everything to one replica.
func TestHTTPPicksCount(t *testing.T) {
	d := startHTTP(t, withHTTP+strings.Replace(quiet, "round_robin", "kv_aware", 1), discard)
	got := make(map[string]int)
	for range 30 {
		to, code, _ := d.route(t, nil)
		require.Equal(t, http.StatusOK, code)
		got[to.ReplicaID]++
	}
	require.Equal(t, got, d.ongoing("chat"))
	require.Len(t, got, 3)
	d.clock.advance(10 * time.Second)
	d.tick("chat")
	require.Zero(t, d.load())
}

// A prompt goes where its prefix went before, also if only its beginning arrived.
func TestHTTPFollowsPrefixAndSession(t *testing.T) {
	d := startHTTP(t, withHTTP+strings.Replace(quiet, "round_robin", "kv_aware", 1), discard)
	for n := range 8 {
		chat := fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":"%s"},{"role":"user","content":"hi"}]}`, strings.Repeat(fmt.Sprint("rule ", n, ". "), 100))
		first, code, _ := d.route(t, strings.NewReader(chat))
		require.Equal(t, http.StatusOK, code)
		require.False(t, first.Truncated)
		cut, _, reason := d.route(t, strings.NewReader(chat[:700]), httpendpoint.HeaderTruncated, "700/1000")
		require.True(t, cut.Truncated)
		require.Equal(t, first.ReplicaID, cut.ReplicaID)
		require.Equal(t, "prefix_match", reason)
	}
	ring := startHTTP(t, withHTTP+strings.Replace(quiet, "round_robin", "consistent_hash", 1), discard)
	used := make(map[string]bool)
	for n := range 10 {
		session := fmt.Sprint("s", n)
		first, _, _ := ring.route(t, nil, "X-Session-Id", session)
		used[first.ReplicaID] = true
		for range 10 {
			again, _, _ := ring.route(t, nil, "x_session_id", session)
			require.Equal(t, first, again)
		}
	}
	require.Greater(t, len(used), 1)
	where, _, _ := ring.route(t, nil, "X-Session-Id", "s0")
	other, _, _ := ring.route(t, nil, "X-Session-Id", "s0", httpendpoint.HeaderExclude, where.ReplicaID)
	require.NotEqual(t, where.ReplicaID, other.ReplicaID)
}

// The statuses of the contract, from a real server.
// A request of the Responses API goes to the replica that holds the response before it, if the caller names its responses,
// and to one replica in a conversation: its input is not the beginning of the prompt.
func TestHTTPFollowsResponses(t *testing.T) {
	d := startHTTP(t, withHTTP+"deployments: {chat: {replicas: [{address: \"a:1\"}, {address: \"b:1\"}, {address: \"c:1\"}]}}", discard)
	ask := func(body string, headers ...string) string {
		t.Helper()
		d.clock.advance(time.Hour) // the picks before are no load
		d.tick("chat")
		to, code, reason := d.route(t, strings.NewReader(body), headers...)
		require.Equal(t, http.StatusOK, code, reason)
		return to.ReplicaID
	}
	used := make(map[string]bool)
	for i := range 30 {
		home := ask(fmt.Sprintf(`{"input":"question %d","request_id":"resp_%d_0","user":"u"}`, i, i))
		used[home] = true
		for turn := range 3 {
			body := fmt.Sprintf(`{"input":"go on","user":"u","previous_response_id":"resp_%d_%d","request_id":"resp_%d_%d"}`, i, turn, i, turn+1)
			require.Equal(t, home, ask(body), "chain %d", i)
		}
		require.NotEqual(t, home, ask(fmt.Sprintf(`{"input":"x","previous_response_id":"resp_%d_0"}`, i), httpendpoint.HeaderExclude, home))
		home = ask(fmt.Sprintf(`{"input":"question %d","conversation":"conv_%d"}`, i, i))
		for turn := range 3 {
			require.Equal(t, home, ask(fmt.Sprintf(`{"input":"go on %d","conversation":{"id":"conv_%d"}}`, turn, i)), "conversation %d", i)
		}
	}
	require.Len(t, used, 3)
}

func TestHTTPStatuses(t *testing.T) {
	d := startHTTP(t, withHTTP+`
load_interval: 10s
max_reservations: 2
deployments:
  chat: {models: [llama], policy: {round_robin: {}}, replicas: [{id: a, address: "10.0.0.1:1"}]}
  code: {models: [coder], policy: {round_robin: {}}, replicas: [{id: b, address: "10.0.0.2:1"}]}
  none: {register: true}
`, discard)
	for _, tt := range []struct {
		body, deployment string
		code             int
		reason, replica  string
	}{
		{`{"model":"llama"}`, "", 200, "round_robin", "a"},
		{`{"model":"coder:ada","prompt":"x"}`, "", 200, "round_robin", "b"},
		{``, "code", 200, "round_robin", "b"},
		{`{"model":"gpt"}`, "", 404, "unknown_model", ""},
		{`{"model":"llama"}`, "code", 404, "unknown_model", ""},
		{``, "music", 404, "unknown_model", ""},
		{``, "", 400, "invalid_request", ""},
		{`{"model":1}`, "", 400, "invalid_request", ""},
		{`{"model":"` + strings.Repeat("m", 300) + `"}`, "", 400, "invalid_request", ""},
		{``, "none", 503, "no_replica", ""},
		{``, "code", 503, "full", ""}, // by max_reservations: two of them counted above
	} {
		to, code, reason := d.route(t, strings.NewReader(tt.body), httpendpoint.HeaderDeployment, tt.deployment)
		require.Equal(t, tt.code, code, tt)
		require.Equal(t, tt.reason, reason, tt)
		require.Equal(t, tt.replica, to.ReplicaID, tt)
	}
}

// raw opens a connection and sends the beginning of a request.
func (d *httpServer) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", d.addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

// A body that does not arrive decides with what arrived; a head that does not arrive ends the connection.
func TestHTTPSlowCallers(t *testing.T) {
	var log logBook
	d := startHTTP(t, "http: {listen: '127.0.0.1:0', read_timeout: 3s}\n"+quiet, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	var slow []net.Conn
	for _, framing := range []string{"Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1000\r\n"} {
		slow = append(slow, d.raw(t, "POST /internal/route HTTP/1.1\r\nHost: x\r\n"+framing+`{"prompt":"secret and slo`))
	}
	silent := d.raw(t, "POST /internal/route HT")
	for _, conn := range slow {
		a, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.Equal(t, string(endpoint.BodyTruncated), a.Header.Get(httpendpoint.HeaderBody))
		raw, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		require.NotContains(t, string(raw), "secret")
	}
	_, err := io.Copy(io.Discard, silent)
	require.NoError(t, err, "it is closed")
	require.NotContains(t, log.String(), "secret")
}

// However long a body is, no more than the bound is read, and the answer does not wait for the rest.
func TestHTTPEndlessBody(t *testing.T) {
	d := startHTTP(t, "http: {listen: '127.0.0.1:0', max_body_bytes: 4096}\n"+quiet, discard)
	endless, more := io.Pipe()
	t.Cleanup(func() { endless.Close() })
	go func() {
		_, err := io.WriteString(more, `{"prompt":"`)
		for err == nil {
			_, err = more.Write(bytes.Repeat([]byte("x"), 1024))
		}
	}()
	to, code, _ := d.route(t, endless)
	require.Equal(t, http.StatusOK, code)
	require.True(t, to.Truncated)
}

// One host may hold half of the connections. More are closed at once, and the others are served.
func TestHTTPConnectionsAreBounded(t *testing.T) {
	d := startHTTP(t, "http: {listen: '127.0.0.1:0', max_body_bytes: 268435456}\n"+quiet, discard)
	const question = "POST /internal/route HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
	ask := func(conn net.Conn) error {
		if _, err := io.WriteString(conn, question); err != nil {
			return err
		}
		_, err := http.ReadResponse(bufio.NewReader(conn), nil)
		return err
	}
	first, second := d.raw(t, ""), d.raw(t, "")
	require.NoError(t, ask(first))
	require.NoError(t, ask(second))
	require.Error(t, ask(d.raw(t, "")))
	require.NoError(t, ask(first))
	require.NoError(t, ask(second))
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool { return ask(d.raw(t, "")) == nil }, 20*time.Second, 5*time.Millisecond)
}

// While the server drains, health is 503. Shutdown ends the HTTP endpoint too.
func TestHTTPDrains(t *testing.T) {
	d := startHTTP(t, withHTTP+quiet, discard)
	get := func() int {
		a, err := http.Get("http://" + d.addr + httpendpoint.HealthPath)
		require.NoError(t, err)
		defer a.Body.Close()
		return a.StatusCode
	}
	require.Equal(t, http.StatusOK, get())
	d.drain()
	require.Equal(t, http.StatusServiceUnavailable, get())
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, d.Shutdown(soon(t)))
	_, err := net.Dial("tcp", d.addr)
	require.Error(t, err)
}

func TestHTTPConfig(t *testing.T) {
	for field, text := range map[string]string{
		"http.listen: ":         "http: {listen: '0.0.0.0:80'}\n",
		"http.max_body_bytes: ": "http: {max_body_bytes: 1}\n",
		"http.read_timeout: ":   "http: {read_timeout: 2h}\n",
		`"colour"`:              "http: {colour: red}\n",
	} {
		_, err := ParseConfig([]byte(text + quiet))
		require.ErrorContains(t, err, field)
	}
	c := parse(t, "allow_plaintext: true\nhttp: {listen: ':80'}\n"+quiet)
	require.Equal(t, 1<<20, c.HTTP.MaxBodyBytes)
	s, err := New(parse(t, quiet), Options{Logger: discard})
	require.NoError(t, err)
	defer s.Close()
	require.ErrorContains(t, s.ServeRoutes(nil), "http.listen")
	require.NoError(t, s.Shutdown(context.Background()))
}
