package page

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// fixed is a server whose status does not change, and that makes no picks.
type fixed struct {
	status *warmpathv1.GetStatusResponse
	err    error
	answer *warmpathv1.ChooseReplicaResponse // to a request that may be split
}

func (f *fixed) GetStatus(context.Context, *warmpathv1.GetStatusRequest) (*warmpathv1.GetStatusResponse, error) {
	return f.status, f.err
}

func (f *fixed) ChooseReplica(_ context.Context, q *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error) {
	if f.answer != nil && q.GetPair() {
		return f.answer, nil
	}
	return nil, status.Error(codes.Unavailable, "<no> replica")
}

func (f *fixed) Admitted(*http.Request) error { return nil }

func (f *fixed) Principal(*http.Request) string { return "" }

func newPage(t *testing.T, f *fixed) *Page {
	t.Helper()
	return New(f, Options{MaxBody: 1 << 20, Until: t.Context()})
}

// statusAt is a status after s seconds: a hundred decisions and a thousand prompt tokens each.
func statusAt(seconds uint64) *warmpathv1.GetStatusResponse {
	return &warmpathv1.GetStatusResponse{Incarnation: "life", UptimeMs: 1000 * seconds, Deployments: []*warmpathv1.DeploymentStatus{{
		Name: "chat", Policy: "kv_aware", Queued: 7,
		Decisions: []*warmpathv1.DecisionCount{
			{Policy: "kv_aware", Reason: "kv_cost", Count: 90 * seconds}, {Policy: "round_robin", Reason: "round_robin", Count: 10 * seconds},
		},
		Failures:     []*warmpathv1.FailureCount{{Code: int32(codes.ResourceExhausted), Count: 4}},
		CachedTokens: &warmpathv1.CachedTokens{Prompt: 1000 * seconds, Predicted: 600 * seconds, Measured: 550 * seconds},
		Shadow:       &warmpathv1.ShadowStatus{Policy: "<b>", Decisions: 100, Differing: 25, MatchedTokens: 1, ActualMatchedTokens: 4},
		Replicas: []*warmpathv1.ReplicaStatus{
			{Id: "calm", State: "ready", Role: "decode", Ongoing: 8, KvTokens: 1000},
			{Id: `"><script>alert(1)</script>`, Address: "h:1", State: "ejected", Ongoing: 16, KvTokens: 64_000, Stale: true,
				Events: &warmpathv1.EventStatus{Connected: 1, Streams: 2, Blocks: 1000, BlockTokens: 16, Gaps: 3, LagUs: 1500, Problem: "<lost>"},
				Health: []*warmpathv1.HealthReport{
					{By: "calls", State: "ejected", ForMs: 65_400, Why: "calls fail", Principals: 2}, {By: "check", State: "not_serving", Why: "NOT_SERVING"},
				}},
		},
	}}}
}

func get(p *Page, path string) (code int, body string) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// The page shows all fields of a status, escaped; replicas with a problem come first.
func TestPageShowsTheStatus(t *testing.T) {
	f := &fixed{status: statusAt(1000)}
	p := newPage(t, f)
	for s := uint64(0); s < 1000; s += 2 {
		p.history.add(statusAt(s))
	}
	require.Len(t, p.history.of("chat"), kept)
	_, body := get(p, "/")
	for _, want := range []string{
		"<b>100</b>", "100,000 in all", "<b>24</b>", "<b>7</b>", "4 in all", "<b>55.0 %</b>", "60.0 % predicted",
		`<td class="n">90</td><td class="n">90,000</td>`, "round_robin/round_robin", "ResourceExhausted",
		"25 of 100 requests (25.0 %)", "&lt;b&gt;", "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;<small>h:1</small>",
		"ejected for 1 min 5 s (2 principals): calls fail", "not_serving (check): NOT_SERVING", "&lt;lost&gt;", "its load is out of date",
		"25.0 %</span><small>16,000 of 64,000 tokens", "1 of 2<small>3 gaps, lag 1.5ms", "up 16 min 40 s",
	} {
		require.Contains(t, body, want)
	}
	require.NotContains(t, body, "<script>alert")
	require.Less(t, strings.Index(body, "alert(1)"), strings.Index(body, `>calm <span class="role">decode</span>`))

	code, body := get(p, "/none")
	require.Equal(t, http.StatusNotFound, code, body)
	f.err = status.Error(codes.PermissionDenied, "not yours")
	code, body = get(p, "/")
	require.Equal(t, http.StatusForbidden, code)
	require.Contains(t, body, "not yours")
}

// The servers are those of the status, each once; one that is out of sync with a deployment is marked.
func TestPageShowsServers(t *testing.T) {
	f := &fixed{status: statusAt(60)}
	_, body := get(newPage(t, f), "/")
	require.Contains(t, body, `<tr><th scope="row">life</th><td><span class="state ready">shows this page</span></td><td>up 1 min 0 s</td></tr>`)
	part := func(inSync bool) *warmpathv1.ClusterStatus {
		return &warmpathv1.ClusterStatus{Origin: "<one>", Connected: inSync, SentBytes: 5000, Peers: []*warmpathv1.PeerStatus{
			{Origin: "two", AgeMs: 2500, InSync: inSync, SameConfig: true}, {Origin: "three", InSync: true, SameConfig: inSync},
		}}
	}
	f.status.Deployments[0].Cluster = part(true)
	_, body = get(newPage(t, f), "/")
	for _, want := range []string{
		`&lt;one&gt;</th><td><span class="state ready">shows this page`, `two</th><td><span class="state ready">in sync</span></td><td>2 s ago`, "5 kB",
	} {
		require.Contains(t, body, want)
	}
	f.status.Deployments = append([]*warmpathv1.DeploymentStatus{{Name: "code", Cluster: part(false)}}, f.status.Deployments...)
	_, body = get(newPage(t, f), "/")
	for _, want := range []string{"cut off from the cluster", `two</th><td><span class="state full">catches up`, `three</th><td><span class="state full">has another config of code`} {
		require.Contains(t, body, want)
	}
	require.Equal(t, 1, strings.Count(body, ">two<"))
}

// A reason that replaces others, which the samples have, gets no rate: it would be the whole count.
func TestWithheldReasonHasNoRate(t *testing.T) {
	f := &fixed{status: statusAt(20)}
	p := newPage(t, f)
	for s := range uint64(20) {
		p.history.add(statusAt(s))
	}
	f.status.Deployments[0].Decisions = []*warmpathv1.DecisionCount{{Policy: "kv_aware", Reason: "withheld", Count: 2000}}
	f.status.Deployments[0].CachedTokens, f.status.Deployments[0].Shadow = nil, nil
	_, body := get(p, "/")
	require.Contains(t, body, `<td class="n">–</td><td class="n">2,000</td>`)
	require.NotContains(t, body, "Cached prompt tokens")
	require.NotContains(t, body, "kv_cost")
}

// The first update is what the page has already, to the last space: the browser keeps its elements, and so the focus.
func TestFirstUpdateChangesNothing(t *testing.T) {
	p := newPage(t, &fixed{status: statusAt(1)})
	_, body := get(p, "/")
	update, err := p.update(httptest.NewRequest(http.MethodGet, "/events", nil))
	require.NoError(t, err)
	require.Contains(t, body, `<div id="live" tabindex="-1">`+string(update)+"</div>")
}

// The streams are bounded, and one that ends makes room.
func TestStreamsAreBounded(t *testing.T) {
	s := httptest.NewServer(newPage(t, &fixed{status: statusAt(1)}))
	defer s.Close()
	open := func() *http.Response {
		a, err := http.Get(s.URL + "/events")
		require.NoError(t, err)
		return a
	}
	first := open()
	for range maxStreams - 1 {
		defer open().Body.Close()
	}
	require.Equal(t, http.StatusServiceUnavailable, open().StatusCode)
	require.NoError(t, first.Body.Close())
	require.Eventually(t, func() bool {
		a := open()
		defer a.Body.Close()
		return a.StatusCode == http.StatusOK
	}, 20*time.Second, time.Millisecond)
}

func TestRefusalIsShown(t *testing.T) {
	p := newPage(t, &fixed{status: statusAt(1)})
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/explain", strings.NewReader("session=%22%3E%3Cb%3E"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	p.ServeHTTP(w, r)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), `role="alert">&lt;no&gt; replica<`)
	require.Contains(t, w.Body.String(), `value="&#34;&gt;&lt;b&gt;"`)
}

// Where a request would be split, both legs are shown, with their scores.
func TestBothLegsAreShown(t *testing.T) {
	decode := &warmpathv1.Decision{Policy: "kv_aware", Reason: "decode", MatchedTokens: 5000, PromptTokens: 5000, Load: 70}
	d := &warmpathv1.ChosenReplica{Id: "d0"}
	p := newPage(t, &fixed{status: statusAt(1), answer: &warmpathv1.ChooseReplicaResponse{
		Deployment: "chat", Replica: d, Decision: decode,
		Candidates: []*warmpathv1.Candidate{{Replica: d, Decision: decode, Score: 70}},
		Prefill:    &warmpathv1.ChosenReplica{Id: "p0"},
		PrefillDecision: &warmpathv1.Decision{
			Policy: "kv_aware", Reason: "kv_cost", MatchedTokens: 4000, PromptTokens: 5000, Load: 30,
		},
	}})
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/explain", strings.NewReader("prompt=x"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	p.ServeHTTP(w, r)
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "p0 prefills it: kv_cost.")
	require.Regexp(t, `(?s)>p0</th>.*>4,000</td>.*>1,000</td>.*>30</td>.*<span>1,030</span>.*>d0</th>`, w.Body.String())
}

func TestNumbers(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 0.256: "0.26", 3: "3", 12.34: "12.3", 999: "999", 999.6: "1 k", 1234: "1.23 k", 45_678_000: "45.7 M", 7e9: "7 G",
	} {
		require.Equal(t, want, short(x))
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1_234_567: "1,234,567"} {
		require.Equal(t, want, count(n))
	}
	for ms, want := range map[uint64]string{0: "0 s", 61_000: "1 min 1 s", 3_660_000: "1 h 1 min", 90_000_000: "1 d 1 h"} {
		require.Equal(t, want, duration(ms))
	}
}

// Axes have a few round numbers that include the data, and points stay within the chart.
func TestChart(t *testing.T) {
	for _, top := range []float64{1e-9, 0.3, 1, 2.5, 3, 7, 99, 100, 1234, 8e12} {
		all := steps(top)
		require.GreaterOrEqual(t, all[len(all)-1], top*(1-1e-9))
		require.True(t, len(all) >= 4 && len(all) <= 11, "%v: %v", top, all)
	}
	require.Equal(t, []float64{0, 1}, steps(math.NaN()))
	require.Equal(t, []float64{1, 10, 100, 1000}, decades(0.5, 1500))
	require.Equal(t, []float64{5, 10, 20, 50}, decades(4, 60))
	require.Equal(t, []float64{18, 20, 25}, decades(17, 26))

	c := Chart{Title: "<t>", LogX: true, Lines: []Line{{Name: "<n>", X: []float64{10, 100, 1000}, Y: []float64{0, 50, 100}}}, MaxY: 100}
	var lines []Line
	for i := range Colors + 1 {
		lines = append(lines, Line{Name: fmt.Sprint(i), X: []float64{-9, -1, 0}, Y: []float64{1, 2, math.NaN()}})
	}
	var b bytes.Buffer
	for _, c := range []Chart{c, {Lines: lines, MinX: -5}, {}} {
		require.NoError(t, Components().ExecuteTemplate(&b, "chart", c))
	}
	require.NoError(t, Components().ExecuteTemplate(&b, "bars", Bars{Rows: []Bar{{Name: "<r>", Value: 1}, {Value: 4}}}))
	require.NoError(t, Components().ExecuteTemplate(&b, "bars", Bars{}))
	text := b.String()
	for _, want := range []string{`points="0.0,100.0 50.0,50.0 100.0,0.0 "`, "&lt;t&gt;", "&lt;n&gt;", "&lt;r&gt;", `c0 dashed" points="80.0,`, `width="25.0%"`} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "NaN")
}
