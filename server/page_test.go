package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	opsToken  = "ops-0123456789abcdef"
	teamToken = "team-0123456789abcdef"
)

// pageConfig has two deployments, and a replica whose name is markup.
const pageConfig = `
http: {listen: '127.0.0.1:0'}
deployments:
  chat:
    policy: {kv_aware: {}}
    shadow_policy: {round_robin: {}}
    replicas:
    - {id: a, address: "10.0.0.1:1", max_ongoing_requests: 40}
    - {id: '<img/src=x/onerror=alert(1)>', address: "10.0.0.2:1"}
  code: {policy: {round_robin: {}}, replicas: [{id: b, address: "10.0.0.3:1"}]}
`

const pagePrincipals = pageConfig + `
principals:
- {name: ops, token: ops-0123456789abcdef, trusted: true}
- {name: team, token: team-0123456789abcdef, deployments: [chat]}
`

// visit makes a request for the page; change may be nil.
func (s *served) visit(t testing.TB, method, path string, body io.Reader, change func(*http.Request)) *http.Response {
	t.Helper()
	at, err := url.Parse(s.http)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(soon(t), method, "http://"+at.Host+path, body)
	require.NoError(t, err)
	if body != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if change != nil {
		change(r)
	}
	a, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Body.Close() })
	return a
}

func text(t testing.TB, a *http.Response) string {
	t.Helper()
	raw, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	return string(raw)
}

func password(token string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth("any", token) }
}

// The page shows the status, loads nothing from other hosts, and escapes the names of configs.
func TestPage(t *testing.T) {
	s := serve(t, pageConfig, nil)
	for range 3 {
		_, err := s.routing.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "code"})
		require.NoError(t, err)
	}
	a := s.visit(t, http.MethodGet, "/", nil, nil)
	require.Equal(t, http.StatusOK, a.StatusCode)
	require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'", a.Header.Get("Content-Security-Policy"))
	require.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
	page := text(t, a)
	require.Contains(t, page, "&lt;img/src=x/onerror=alert(1)&gt;")
	require.NotContains(t, page, "<img")
	require.NotRegexp(t, `(?i)<script[^>]*>[^<]|<style|\sstyle=|\son\w+=|https?://|javascript:`, regexp.MustCompile(`<th scope="row">&lt;img[^<]*`).ReplaceAllString(page, ""))
	require.Regexp(t, `<th scope="row">round_robin</th>(?s:.{0,200})<td class="n">3</td>`, page)
	for _, want := range []string{"kv_aware", "0 <i>of 40</i>", "10.0.0.3:1", "Shadow policy", ">2 ready<", "None. Clients that watch"} {
		require.Contains(t, page, want)
	}
	for path, kind := range map[string]string{"/page.js": "text/javascript; charset=utf-8", "/page.css": "text/css; charset=utf-8", "/page.svg": "image/svg+xml"} {
		a := s.visit(t, http.MethodGet, path, nil, nil)
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.Equal(t, kind, a.Header.Get("Content-Type"))
	}
	require.Equal(t, http.StatusNotFound, s.visit(t, http.MethodGet, "/page.html", nil, nil).StatusCode)
	require.Equal(t, http.StatusForbidden, s.visit(t, http.MethodGet, "/", nil, func(r *http.Request) { r.Host = "rebound.example:4780" }).StatusCode)
	require.Equal(t, http.StatusOK, s.visit(t, http.MethodGet, "/", nil, func(r *http.Request) { r.Host = "localhost" }).StatusCode)
}

// next reads events until the live part contains a text.
func next(t testing.TB, events *bufio.Scanner, want string) {
	t.Helper()
	var part strings.Builder
	for events.Scan() {
		line, is := strings.CutPrefix(events.Text(), "data: ")
		if is {
			part.WriteString(line + "\n")
			continue
		}
		if strings.Contains(part.String(), want) {
			return
		}
		part.Reset()
	}
	t.Fatalf("the stream ends before it shows %q: %v", want, events.Err())
}

// The live part follows the status until the server shuts down.
func TestPageIsLive(t *testing.T) {
	s := serve(t, pageConfig, nil)
	a := s.visit(t, http.MethodGet, "/events", nil, nil)
	require.Equal(t, "text/event-stream", a.Header.Get("Content-Type"))
	events := bufio.NewScanner(a.Body)
	events.Buffer(nil, 1<<20)
	next(t, events, "None. Clients that watch")
	for range 1234 {
		_, err := s.routing.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "code"})
		require.NoError(t, err)
	}
	next(t, events, "1,234 in all")
	require.NoError(t, s.server.Shutdown(soon(t)))
	for events.Scan() { // it ends
	}
}

// Principals see what their status contains, and streams end with their principal.
func TestPageHasPrincipals(t *testing.T) {
	s := serve(t, pagePrincipals, nil)
	for _, change := range []func(*http.Request){nil, password("wrong-0123456789abcdef"), func(r *http.Request) { r.Header.Set("Authorization", "Basic ?") }} {
		for _, path := range []string{"/", "/events", "/page.js"} {
			a := s.visit(t, http.MethodGet, path, nil, change)
			require.Equal(t, http.StatusUnauthorized, a.StatusCode)
			require.True(t, strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Basic "))
		}
	}
	ops := text(t, s.visit(t, http.MethodGet, "/", nil, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+opsToken) }))
	require.Contains(t, ops, "Shadow policy")
	require.Contains(t, ops, "10.0.0.3:1")
	team := text(t, s.visit(t, http.MethodGet, "/", nil, password(teamToken)))
	require.NotContains(t, team, "Shadow policy")
	require.NotContains(t, team, "10.0.0.3:1")
	require.Contains(t, team, "10.0.0.1:1")
	ask := url.Values{"deployment": {"code"}}.Encode()
	require.Equal(t, http.StatusForbidden, s.visit(t, http.MethodPost, "/explain", strings.NewReader(ask), password(teamToken)).StatusCode)
	ask = url.Values{"session": {"s"}}.Encode()
	require.Contains(t, text(t, s.visit(t, http.MethodPost, "/explain", strings.NewReader(ask), password(teamToken))), "The scores are for trusted principals.")
	route := s.visit(t, http.MethodPost, "/internal/route", strings.NewReader("{}"), password(opsToken))
	require.Equal(t, http.StatusUnauthorized, route.StatusCode, "only the page takes tokens as passwords")

	a := s.visit(t, http.MethodGet, "/events", nil, password(teamToken))
	events := bufio.NewScanner(a.Body)
	events.Buffer(nil, 1<<20)
	next(t, events, "10.0.0.1:1")
	require.NoError(t, s.server.Update(parseConfig(t, strings.Replace(pagePrincipals, teamToken, "another-0123456789", 1))))
	for events.Scan() {
		require.Contains(t, events.Text()+"data: ", "data: ")
	}
	require.NoError(t, events.Err(), "the server ends the stream")
}

// One principal cannot take all the places of browsers that follow the page.
func TestPageStreamsOfOnePrincipalAreBounded(t *testing.T) {
	s := serve(t, pagePrincipals, nil)
	refused := 0
	for range 9 {
		if s.visit(t, http.MethodGet, "/events", nil, password(teamToken)).StatusCode == http.StatusServiceUnavailable {
			refused++
		}
	}
	require.Equal(t, 1, refused)
	require.Equal(t, http.StatusOK, s.visit(t, http.MethodGet, "/events", nil, password(opsToken)).StatusCode)
}

// The form picks like PICK_MODE_QUERY: the same answer for the same request, without a change of the policy.
func TestPageExplains(t *testing.T) {
	s := serve(t, pageConfig, nil)
	prompt := strings.Repeat("a long prompt that one replica has cached. ", 200)
	chat := fmt.Sprintf(`{"model":"chat","messages":[{"role":"user","content":%q}]}`, prompt)
	explain := func(code int, change func(*http.Request), values ...string) string {
		t.Helper()
		form := make(url.Values)
		for i := 0; i < len(values); i += 2 {
			form.Set(values[i], values[i+1])
		}
		a := s.visit(t, http.MethodPost, "/explain", strings.NewReader(form.Encode()), change)
		require.Equal(t, code, a.StatusCode)
		_, answer, found := strings.Cut(text(t, a), `<div id="answer"`)
		require.True(t, found)
		answer, _, _ = strings.Cut(answer, `<div id="live"`)
		return answer
	}
	require.Contains(t, explain(http.StatusOK, nil, "deployment", "chat", "prompt", prompt), "decides: rendezvous")
	require.Contains(t, explain(http.StatusOK, nil, "deployment", "chat", "prompt", prompt), "decides: rendezvous", "the query is not learned")
	for _, input := range []string{prompt, chat} {
		body, key := input, &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_Text{Text: input}}
		if input == chat {
			code, _ := s.post(t, body)
			require.Equal(t, http.StatusOK, code)
		} else {
			_, err := s.routing.ChooseReplica(metadata.NewOutgoingContext(soon(t), nil), &warmpathv1.ChooseReplicaRequest{Deployment: "chat", Key: key})
			require.NoError(t, err)
		}
		answer := explain(http.StatusOK, nil, "deployment", "chat", "prompt", input)
		require.Contains(t, answer, "decides: prefix_match")
		require.Equal(t, 2, strings.Count(answer, `<tr><th scope="row">`), "all candidates have scores")
	}
	for _, tt := range []struct {
		code   int
		values []string
		want   string
	}{
		{http.StatusBadRequest, []string{"session", "s"}, "name a deployment: there are chat, code"},
		{http.StatusNotFound, []string{"deployment", "<b>none</b>"}, "&lt;b&gt;none&lt;/b&gt;"},
		{http.StatusNotFound, []string{"model", "llama"}, "llama"},
		{http.StatusBadRequest, []string{"prompt", `{"model": 1}`}, "model"},
		{http.StatusBadRequest, []string{"prompt", strings.Repeat("x", 2<<20)}, "too large"},
	} {
		require.Contains(t, explain(tt.code, nil, tt.values...), tt.want)
	}
	a := s.visit(t, http.MethodPost, "/explain", strings.NewReader("session=s"), func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	require.Equal(t, http.StatusForbidden, a.StatusCode)
}
