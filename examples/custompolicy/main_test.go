package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/examples/stubs/fake"
)

// service answers without a network: with the order of a session, or an error.
type service func(session string) ([]string, error)

func (s service) RoundTrip(q *http.Request) (*http.Response, error) {
	order, err := s(q.URL.Query().Get("session"))
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	_, err = w.Write(body)
	return w.Result(), err
}

func mine(t *testing.T, s service) *Mine {
	t.Helper()
	m, err := New(Config{URL: "http://placement.example/"}, s)
	require.NoError(t, err)
	return m
}

// The policy keeps the rules of every policy, with a service that answers and with one that does not.
func TestConform(t *testing.T) {
	for name, s := range map[string]service{
		"placed": func(string) ([]string, error) { return []string{"r2", "gone", "r0", "r1", "r2"}, nil },
		"down":   func(string) ([]string, error) { return nil, errors.New("no route to host") },
	} {
		t.Run(name, func(t *testing.T) {
			policytest.Conform(t, func() policy.Policy { return mine(t, s).Policy() })
		})
	}
}

// The policy's own rule.
func TestFollowsTheService(t *testing.T) {
	r := policytest.NewRouter(t, mine(t, func(session string) ([]string, error) {
		return map[string][]string{"anna": {"r1", "r2"}}[session], nil
	}).Policy(), policytest.Bounded(policytest.Fleet(3), 1))
	first := policytest.Pick(t, r, policytest.Session("anna"))
	require.Equal(t, "r1", first.Decision.Replica.ID)
	require.Equal(t, reasonPlaced, first.Decision.Reason)
	second := policytest.Pick(t, r, policytest.Session("anna"))
	require.Equal(t, "r2", second.Decision.Replica.ID)
	require.Equal(t, 1, second.Decision.Place)
	third := policytest.Pick(t, r, policytest.Session("anna"))
	require.Equal(t, "r0", third.Decision.Replica.ID)
	require.Equal(t, policy.ReasonLeastLoaded, third.Decision.Reason)
}

func TestConfigIsRefusedAtDial(t *testing.T) {
	for config, want := range map[string]string{
		`{}`:                          "policy.mine: url:",
		`{"url": "placement"}`:        "policy.mine: url:",
		`{"uri": "http://x.example"}`: `policy.mine: unknown field "uri"`,
	} {
		_, err := client.New("warmpath:///127.0.0.1:1", client.WithConfig(`{"policy": {"mine": `+config+`}}`))
		require.ErrorContains(t, err, want)
	}
}

func TestEndToEnd(t *testing.T) {
	target, servers, stop, err := fake.Fleet(2)
	require.NoError(t, err)
	defer stop()
	a, b := servers[0].Addr(), servers[1].Addr()
	places := map[string][]string{"anna": {a}, "bert": {b}}
	placement := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_ = json.NewEncoder(w).Encode(places[q.URL.Query().Get("session")])
	}))
	defer placement.Close()

	var out strings.Builder
	want := fmt.Sprintf("anna: %s (placed)\nbert: %s (placed)\n", a, b)
	// A replica may not be connected yet, or the service be late: then the least loaded one serves.
	require.Eventually(t, func() bool {
		out.Reset()
		require.NoError(t, run(t.Context(), &out, placement.URL, target))
		return out.String() == want
	}, time.Minute, time.Millisecond, "%s", &out)
}

// A service that never answers fails no call.
func TestServiceHangs(t *testing.T) {
	target, _, stop, err := fake.Fleet(1)
	require.NoError(t, err)
	defer stop()
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }))
	defer hang.Close()

	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, hang.URL, target))
	require.Equal(t, 2, strings.Count(out.String(), "(least_loaded)"), out.String())
}
