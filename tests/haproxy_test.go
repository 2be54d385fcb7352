package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// Sessions stay on the replica that the look-aside server names, and the answers stream through.
func TestHAProxyRoutesBySession(t *testing.T) {
	replicas := httpReplicas(t)
	_, a := httpLookAside(t, replicas, "consistent_hash: {}", "")
	_, b := httpLookAside(t, replicas, "consistent_hash: {}", "")
	f := startHAProxy(t, a, b, replicas)
	used := make(map[string]bool)
	for n := range 10 {
		session := fmt.Sprint("session ", n)
		first := f.post(strings.NewReader(chat("x")), "X-Session-Id", session)
		require.Equal(t, http.StatusOK, first.code)
		require.Equal(t, "ring", first.reason)
		require.Equal(t, fmt.Sprintf("data: %s\n\ndata: %d\n\ndata: [DONE]\n\n", first.replica, len(chat("x"))), first.body)
		for range 5 {
			require.Equal(t, first, f.post(strings.NewReader(chat("x")), "x_session_ID", session))
		}
		used[first.replica] = true
	}
	require.Greater(t, len(used), 1)
	require.NotContains(t, f.log.String(), "messages")

	a1, err := f.client.Get(f.url + "/v1/models") // no server is asked
	require.NoError(t, err)
	defer a1.Body.Close()
	require.Equal(t, http.StatusOK, a1.StatusCode)
	require.Empty(t, a1.Header.Get(httpendpoint.HeaderReason))
}

// HAProxy forwards the body only if the flag is set. Then a prompt goes to the replica where its prefix is warm, also
// if it is longer than HAProxy's buffer, and the replica gets all of it.
func TestHAProxyForwardsTheBody(t *testing.T) {
	replicas := httpReplicas(t)
	fake := newFakeServer(t, func(w http.ResponseWriter, r *http.Request) { name(w, "r0") })
	f := startHAProxy(t, fake.addr(), fake.addr(), replicas)
	require.Equal(t, "r0", f.post(strings.NewReader(chat("secret"))).replica)
	require.Equal(t, []string{""}, fake.receivedBodies())

	f = startHAProxy(t, fake.addr(), fake.addr(), replicas, "WARMPATH_FORWARD_BODY=1")
	require.Equal(t, "r0", f.post(strings.NewReader(chat("whole"))).replica)
	require.Equal(t, []string{"", chat("whole")}, fake.receivedBodies())

	_, a := httpLookAside(t, replicas, "kv_aware: {}", "")
	f = startHAProxy(t, a, a, replicas, "WARMPATH_FORWARD_BODY=1")
	for n := range 6 {
		for _, length := range []int{2_000, 300_000} {
			body := chat(strings.Repeat(fmt.Sprintf("Rule %d. ", n), length/8))
			first := f.post(strings.NewReader(body))
			again := f.post(struct{ io.Reader }{strings.NewReader(body)}) // chunked
			require.Equal(t, first.replica, again.replica)
			require.Equal(t, "prefix_match", again.reason)
			require.Contains(t, first.body+again.body, fmt.Sprintf("data: %d\n\ndata: [DONE]\n\ndata: %s\n\ndata: %d\n\n", len(body), first.replica, len(body)))
		}
	}
	sizes := make(map[int]int)
	for _, r := range replicas {
		for _, body := range r.served() {
			sizes[len(body)]++
			require.True(t, json.Valid([]byte(body)))
		}
	}
	require.Equal(t, 12, sizes[len(chat(strings.Repeat("Rule 0. ", 300_000/8)))])
}

// Issue 12.26: without a pick the request ends as docs/http-endpoint.md describes: with a reason, status 503 and no
// request to a replica. If HAProxy is set to fail open, the request goes to the least busy replica.
func TestHAProxyWithoutAPick(t *testing.T) {
	answer := func(code int, reason, body string) func(t *testing.T) string {
		return func(t *testing.T) string {
			return newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
				if reason != "" {
					w.Header().Set(httpendpoint.HeaderReason, reason)
				}
				w.WriteHeader(code)
				_, _ = io.WriteString(w, body)
			}).addr()
		}
	}
	for _, tt := range []struct {
		name   string
		server func(t *testing.T) string
		reason string
	}{
		{"dead", func(t *testing.T) string { return freeAddr(t) }, "server_unreachable"},
		{"slow", func(t *testing.T) string {
			return newFakeServer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }).addr()
		}, "server_timeout"},
		{"no HTTP", babbler, "router_non_200"},
		{"a page", answer(200, "", "<html>welcome</html>"), "unparseable_replica_id"},
		{"nothing", answer(200, "ring", ""), "unparseable_replica_id"},
		{"other JSON", answer(200, "ring", `{"replica_id":17}`), "unparseable_replica_id"},
		{"a strange id", answer(200, "ring", `{"replica_id":"a\u0022"}`), "unparseable_replica_id"},
		{"an error", answer(500, "internal", `{"replica_id":"r0"}`), "internal"},
		{"an error without a reason", answer(404, "", "not here"), "router_non_200"},
		{"no replica", answer(503, "no_replica", "{}"), "no_replica"},
		{"a replica without a server", answer(200, "ring", `{"replica_id":"r9"}`), "unknown_replica"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			at := tt.server(t)
			replicas := httpReplicas(t)
			timeout := "WARMPATH_TIMEOUT=20s"
			if tt.reason == "server_timeout" {
				timeout = "WARMPATH_TIMEOUT=250ms"
			}
			open := startHAProxy(t, at, at, replicas, timeout, "WARMPATH_FAIL_OPEN=1")
			for range 3 {
				got := open.post(strings.NewReader(chat("x")))
				require.Equal(t, http.StatusOK, got.code)
				require.Equal(t, tt.reason, got.reason)
			}
			replicas = httpReplicas(t)
			closed := startHAProxy(t, at, at, replicas, timeout)
			for range 3 {
				got := closed.post(strings.NewReader(chat("x")))
				require.Equal(t, http.StatusServiceUnavailable, got.code)
				require.Equal(t, tt.reason, got.reason)
			}
			for _, r := range replicas {
				require.Empty(t, r.served())
			}
		})
	}
}

// Issue 12.26: a pick is valid without a reason.
func TestHAProxyNeedsNoReason(t *testing.T) {
	replicas := httpReplicas(t)
	fake := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"replica_id":"r2"}`) })
	f := startHAProxy(t, fake.addr(), fake.addr(), replicas)
	got := f.post(strings.NewReader(chat("x")))
	require.Equal(t, http.StatusOK, got.code)
	require.Equal(t, "r2", got.replica)
	require.Empty(t, got.reason)
}

// Issue 27, §3.12: without bodies a session's turns stay on an idle fleet, and only what HAProxy has under way is load.
func TestHAProxySessionsStayOnAnIdleFleet(t *testing.T) {
	replicas := httpReplicas(t)
	_, a := httpLookAside(t, replicas, "kv_aware: {}", "max_reservations: 5\n")
	f := startHAProxy(t, a, a, replicas)
	homes, moved := make(map[string]string), 0
	for range 10 {
		for n := range 30 {
			session := fmt.Sprint("session ", n)
			got := f.post(strings.NewReader(chat("x")), "X-Session-Id", session)
			require.Equal(t, http.StatusOK, got.code)
			if home := homes[session]; home != "" && home != got.replica {
				moved++
			}
			homes[session] = got.replica
		}
	}
	require.Zero(t, moved)
}
