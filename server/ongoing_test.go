package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// proxied is a proxy's count of its requests at a replica.
type proxied struct{ now, begun int }

func toldBy(caller string, counts map[string]proxied) string {
	var all []string
	for id, c := range counts {
		all = append(all, fmt.Sprintf("%s=%d/%d", id, c.now, c.begun))
	}
	return caller + "; " + strings.Join(all, ", ")
}

// Issue 27, §3.12: the turns of sessions stay on an idle fleet, though no request has a body and no end is reported.
func TestHTTPSessionsStayOnAnIdleFleet(t *testing.T) {
	d := startHTTP(t, withHTTP+strings.Replace(quiet, "round_robin", "kv_aware", 1), discard)
	counts := map[string]proxied{"a": {}, "b": {}, "c": {}}
	homes, moved := make(map[string]string), 0
	for range 20 {
		for n := range 40 {
			session := fmt.Sprint("session ", n)
			to, code, _ := d.route(t, nil, "X-Session-Id", session, httpendpoint.HeaderOngoing, toldBy("proxy", counts))
			require.Equal(t, http.StatusOK, code)
			if home := homes[session]; home != "" && home != to.ReplicaID {
				moved++
			}
			homes[session] = to.ReplicaID
			c := counts[to.ReplicaID]
			counts[to.ReplicaID] = proxied{0, c.begun + 1} // it began, and has ended
		}
	}
	require.Zero(t, moved)
	_, _, _ = d.route(t, nil, httpendpoint.HeaderOngoing, toldBy("proxy", counts))
	require.EqualValues(t, 1, d.load().ongoing, "the pick that was just made")
	d.clock.advance(countedHold)
	d.tick("chat")
	require.Zero(t, d.load())
	require.Empty(t, d.deployment("chat").picks.leases.told)
}

// What a caller tells ends no pick whose request is on its way or under way, nor one of another caller.
func TestHTTPOngoingPicksStay(t *testing.T) {
	d := startHTTP(t, withHTTP+`
load_interval: 10s
deployments:
  chat: {policy: {round_robin: {}}, replicas: [{id: a, address: "10.0.0.1:1"}]}
`, discard)
	for _, tt := range []struct {
		caller  string
		a       proxied
		ongoing int // with the pick that is asked for
	}{
		{"x", proxied{0, 5}, 1},
		{"x", proxied{0, 5}, 2}, // the first has not begun yet
		{"x", proxied{2, 7}, 3},
		{"y", proxied{0, 900}, 4},
		{"x", proxied{2, 8}, 4}, // one of three has ended
		{"x", proxied{2, 7}, 5}, // told before the last
		{"x", proxied{4, 40}, 6},
		{"x", proxied{0, 44}, 2}, // all have ended
		{"y", proxied{0, 901}, 2},
		{"x", proxied{0, 45}, 2},
	} {
		_, code, _ := d.route(t, nil, httpendpoint.HeaderOngoing, toldBy(tt.caller, map[string]proxied{"a": tt.a, "gone": {1, 9}}))
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, tt.ongoing, d.ongoing("chat")["a"], tt)
	}
	for _, text := range []string{"x", "; a=1/1", "x; a", "x; a=1", "x; a=-1/2", "x; =1/2", "x; a=1/2/3"} {
		_, code, reason := d.route(t, nil, httpendpoint.HeaderOngoing, text)
		require.Equal(t, http.StatusBadRequest, code, text)
		require.Equal(t, "invalid_request", reason)
	}
}

// Issue 28 #24: a refusal says when there may be room, by how long the requests under way last.
func TestHTTPRetryAfter(t *testing.T) {
	d := startHTTP(t, withHTTP+`
load_interval: 10s
deployments:
  chat: {policy: {round_robin: {}}, max_ongoing_requests: 2, replicas: [{id: a, address: "10.0.0.1:1"}]}
`, discard)
	after := func(code int) string {
		r, err := http.NewRequestWithContext(soon(t), http.MethodPost, "http://"+d.addr+httpendpoint.RoutePath, nil)
		require.NoError(t, err)
		a, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer a.Body.Close()
		require.Equal(t, code, a.StatusCode)
		return a.Header.Get("Retry-After")
	}
	for range 2 {
		require.Empty(t, after(200))
	}
	require.Equal(t, "1", after(503), "they have just begun")
	d.clock.advance(9 * time.Second)
	require.Equal(t, "5", after(503), "one of two that lasted 9 s")
	d.clock.advance(time.Second)
	d.tick("chat")
	require.Empty(t, after(200))
}
