package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// One healthy look-aside server of two is enough, whichever it is and however the other fails.
func TestHAProxyFailsOver(t *testing.T) {
	for name, broken := range map[string]func(t *testing.T) string{
		"dead": func(t *testing.T) string { return freeAddr(t) },
		"frozen": func(t *testing.T) string {
			return newFakeServer(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }).addr()
		},
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", first), func(t *testing.T) {
				t.Parallel()
				replicas := httpReplicas(t)
				_, good := httpLookAside(t, replicas, "consistent_hash: {}", "")
				a, b := broken(t), good
				if first {
					a, b = b, a
				}
				timeout, posts := "20s", 5
				if name == "frozen" {
					timeout, posts = "5s", 2
				}
				f := startHAProxy(t, a, b, replicas, "WARMPATH_TIMEOUT="+timeout)
				for n := range posts {
					got := f.post(strings.NewReader(chat("x")), "X-Session-Id", fmt.Sprint(n))
					require.Equal(t, http.StatusOK, got.code)
					require.Equal(t, "ring", got.reason)
				}
			})
		}
	}
}

// While both servers are up, HAProxy asks only one, which sees all routes.
func TestHAProxyAsksOneOfTwo(t *testing.T) {
	replicas := httpReplicas(t)
	a := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) { name(w, "r1") })
	b := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) { name(w, "r1") })
	f := startHAProxy(t, a.addr(), b.addr(), replicas, "WARMPATH_DEPLOYMENT=chat", "WARMPATH_SESSION=User_Key")
	for range 20 {
		require.Equal(t, "r1", f.post(strings.NewReader(chat("x")), "user-key", "u", "X-Request-Id", "id", "Authorization", "Bearer secret").replica)
	}
	asked := append(a.asked(), b.asked()...)
	require.Len(t, asked, 20)
	require.True(t, len(a.asked()) == 0 || len(b.asked()) == 0)
	require.Len(t, replicas[1].served(), 20)
	for _, h := range asked {
		require.Equal(t, "chat", h.Get(httpendpoint.HeaderDeployment))
		require.Equal(t, "u", h.Get("X-Session-Id"))
		require.Equal(t, "id", h.Get("X-Request-Id"))
		require.Empty(t, h.Get("Authorization"), "what the server has no use for stays here")
	}
}

// The server's refusals reach the client unchanged.
func TestHAProxyPassesRefusalsOn(t *testing.T) {
	replicas := httpReplicas(t)
	s, at := httpLookAside(t, replicas, "round_robin: {}", "max_reservations: 2\n")
	f := startHAProxy(t, at, at, replicas, "WARMPATH_FORWARD_BODY=1")
	refused := func(code int, reason, message string, body string) {
		t.Helper()
		got := f.post(strings.NewReader(body))
		require.Equal(t, code, got.code)
		require.Equal(t, reason, got.reason)
		require.Contains(t, got.body, message)
		require.Contains(t, got.body, `"code":"`+reason+`"`)
	}
	refused(http.StatusNotFound, "unknown_model", `no deployment serves the model \"gpt\"`, `{"model":"gpt"}`)
	refused(http.StatusBadRequest, "invalid_request", "must be a string", `{"model":7}`)
	for range 2 { // not through HAProxy, whose picks are over with their requests
		picked, err := f.client.Post("http://"+at+httpendpoint.RoutePath, "", nil)
		require.NoError(t, err)
		picked.Body.Close()
		require.Equal(t, http.StatusOK, picked.StatusCode)
	}
	refused(http.StatusServiceUnavailable, "full", "max_reservations", chat("x"))
	full, err := f.client.Post(f.url+"/v1/chat/completions", "", strings.NewReader(chat("x")))
	require.NoError(t, err)
	full.Body.Close()
	require.NotEmpty(t, full.Header.Get(httpendpoint.HeaderRetryAfter))
	s.Close()
	require.Equal(t, "server_unreachable", f.post(strings.NewReader(chat("x"))).reason)
}

// If HAProxy has marked a picked replica as down, it asks for another pick.
func TestHAProxyAsksForAnother(t *testing.T) {
	replicas := httpReplicas(t)
	_, at := httpLookAside(t, replicas, "consistent_hash: {}", "")
	f := startHAProxy(t, at, at, replicas)
	post := func(session int) outcome {
		return f.post(strings.NewReader(chat("x")), "X-Session-Id", fmt.Sprint("s", session))
	}
	before := make(map[int]string)
	for n := range 12 {
		before[n] = post(n).replica
	}
	replicas[1].Close()
	for n := range 12 { // before HAProxy has marked it as down, and after
		require.Equal(t, http.StatusOK, post(n).code)
	}
	eventually(t, "HAProxy finds it down", func() bool { return strings.Contains(f.log.String(), "replicas/r1 is DOWN") })
	moved := make(map[int]outcome)
	for n := range 12 {
		got := post(n)
		require.Equal(t, http.StatusOK, got.code)
		require.Equal(t, "ring", strings.TrimSuffix(got.reason, "_fallback"), "it is asked, and does not guess")
		require.NotEqual(t, "r1", got.replica)
		if before[n] != "r1" {
			require.Equal(t, before[n], got.replica)
		} else {
			moved[n] = got
		}
	}
	require.NotEmpty(t, moved)
	for n, got := range moved {
		require.Equal(t, got.replica, post(n).replica, "and stays there")
	}
	fake := newFakeServer(t, func(w http.ResponseWriter, r *http.Request) {
		name(w, "r1")
	})
	f = startHAProxy(t, fake.addr(), fake.addr(), replicas)
	eventually(t, "HAProxy finds it down", func() bool { return strings.Contains(f.log.String(), "replicas/r1 is DOWN") })
	require.Equal(t, "replica_down", post(0).reason)
	asked := fake.asked()
	require.Len(t, asked, 3)
	require.Equal(t, "r1", asked[1].Get(httpendpoint.HeaderExclude))
	require.Equal(t, "r1,r1", asked[2].Get(httpendpoint.HeaderExclude))
}

// The rank in a pick reaches the replica.
func TestHAProxySendsTheRank(t *testing.T) {
	replicas := httpReplicas(t)
	fake := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"replica_id":"r2","host":"h","port":1,"request_headers":{"x-data-parallel-rank":"3"}}`)
	})
	f := startHAProxy(t, fake.addr(), fake.addr(), replicas)
	require.Equal(t, "r2", f.post(strings.NewReader(chat("x"))).replica)
	require.Equal(t, []string{"3"}, replicas[2].ranks)
}

// Features that clients of HAProxy use: HTTP/2, many requests on one connection, Expect: 100-continue, long bodies,
// and no body.
func TestHAProxyClients(t *testing.T) {
	replicas := httpReplicas(t)
	_, at := httpLookAside(t, replicas, "kv_aware: {}", "")
	for _, env := range []string{"WARMPATH_NOTHING=", "WARMPATH_FORWARD_BODY=1"} {
		t.Run(env, func(t *testing.T) {
			f := startHAProxy(t, at, at, replicas, env)
			var protocols http.Protocols
			protocols.SetUnencryptedHTTP2(true)
			h2 := &http.Client{Transport: &http.Transport{Protocols: &protocols, ExpectContinueTimeout: time.Minute}}
			defer h2.CloseIdleConnections()
			long := chat(strings.Repeat("long ", 400_000))
			for version, client := range map[string]*http.Client{"HTTP/1.1": f.client, "HTTP/2.0": h2} {
				f.client = client
				for n := range 5 {
					got := f.post(strings.NewReader(long), "Expect", "100-continue", "X-Session-Id", fmt.Sprint(n))
					require.Equal(t, http.StatusOK, got.code, version)
					require.Contains(t, got.body, fmt.Sprintf("data: %d\n", len(long)))
					require.Equal(t, http.StatusOK, f.post(nil).code)
					require.Equal(t, http.StatusOK, f.post(struct{ io.Reader }{strings.NewReader(chat("chunked"))}).code)
				}
			}
			ctx, cancel := context.WithCancel(deadline(t))
			body, more := io.Pipe() // the client disconnects in the middle of its body
			q, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, body)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() {
				_, err := h2.Do(q)
				done <- err
			}()
			_, err = io.WriteString(more, `{"messages":[`)
			require.NoError(t, err)
			cancel()
			require.Error(t, <-done)
			require.NoError(t, more.Close())
			require.Equal(t, http.StatusOK, f.post(strings.NewReader(chat("after"))).code)
		})
	}
}

// Many concurrent requests are all answered, and spread over the replicas.
func TestHAProxyUnderLoad(t *testing.T) {
	replicas := httpReplicas(t)
	_, at := httpLookAside(t, replicas, "power_of_two_choices: {}", "")
	f := startHAProxy(t, at, at, replicas)
	f.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 32
	var all sync.WaitGroup
	var reasons [32]map[string]int
	for worker := range reasons {
		reasons[worker] = make(map[string]int)
		all.Go(func() {
			for range 30 {
				q, err := http.NewRequest(http.MethodPost, f.url+"/v1/completions", strings.NewReader(chat("x")))
				if err != nil {
					return
				}
				a, err := f.client.Do(q)
				if err != nil {
					reasons[worker][err.Error()]++
					continue
				}
				_, _ = io.Copy(io.Discard, a.Body)
				a.Body.Close()
				reasons[worker][a.Header.Get(httpendpoint.HeaderReason)]++
			}
		})
	}
	all.Wait()
	total := make(map[string]int)
	for _, m := range reasons {
		for reason, n := range m {
			total[reason] += n
		}
	}
	require.Equal(t, map[string]int{"least_of_two": 32 * 30}, total)
	for _, r := range replicas {
		require.InDelta(t, 320, len(r.served()), 100, r.name)
	}
}

// HAProxy waits for a slow body, since no replica can begin without it. A body that never ends gets status 408.
func TestHAProxySlowBody(t *testing.T) {
	replicas := httpReplicas(t)
	fake := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) { name(w, "r1") })
	f := startHAProxy(t, fake.addr(), fake.addr(), replicas, "WARMPATH_FORWARD_BODY=1", "WARMPATH_BODY_TIMEOUT=20s")
	whole := chat(strings.Repeat("slow ", 1000))
	body, more := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := io.WriteString(more, whole[:2000])
		if a, errGet := f.client.Get(f.url + "/v1/models"); errGet == nil { // other requests are served meanwhile
			a.Body.Close()
		}
		_, errRest := io.WriteString(more, whole[2000:])
		done <- errors.Join(err, errRest, more.Close())
	}()
	require.Equal(t, "r1", f.post(body).replica)
	require.NoError(t, <-done)
	require.Equal(t, []string{whole}, fake.receivedBodies())
	require.Equal(t, []string{whole}, replicas[1].served())

	f = startHAProxy(t, fake.addr(), fake.addr(), replicas, "WARMPATH_FORWARD_BODY=1", "WARMPATH_BODY_TIMEOUT=200ms")
	never, open := io.Pipe()
	t.Cleanup(func() { open.Close() })
	require.Equal(t, http.StatusRequestTimeout, f.post(never).code)
	require.Len(t, fake.receivedBodies(), 1)
}

// HAProxy sends its own token to the server, and not the client's.
func TestHAProxyToken(t *testing.T) {
	replicas := httpReplicas(t)
	_, at := httpLookAside(t, replicas, "round_robin: {}", "principals: [{name: proxy, token_file: "+tokenFile(t, "proxy-0123456789abcd")+"}]\n")
	f := startHAProxy(t, at, at, replicas, "WARMPATH_TOKEN=proxy-0123456789abcd")
	require.Equal(t, "round_robin", f.post(strings.NewReader(chat("x")), "Authorization", "Bearer client").reason)
	f = startHAProxy(t, at, at, replicas)
	require.Equal(t, "unauthenticated", f.post(strings.NewReader(chat("x")), "Authorization", "Bearer proxy-0123456789abcd").reason)
}

// Issue 12.47: when replicas are killed, the one that is left answers the requests under way on them, and the next
// ones.
func TestHAProxyAfterReplicasDie(t *testing.T) {
	replicas := httpReplicas(t)
	started := make(chan struct{}, 100)
	hang := http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		started <- struct{}{}
		<-q.Context().Done()
	})
	for _, r := range replicas[:2] {
		r.post.Store(&hang)
	}
	fake := newFakeServer(t, func(w http.ResponseWriter, q *http.Request) { // names the first replica that is not excluded
		for _, id := range []string{"r0", "r1", "r2"} {
			if !strings.Contains(q.Header.Get(httpendpoint.HeaderExclude), id) {
				name(w, id)
				return
			}
		}
	})
	other := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) { name(w, "r1") })
	first := startHAProxy(t, fake.addr(), fake.addr(), replicas)
	second := startHAProxy(t, other.addr(), other.addr(), replicas)
	results := make(chan outcome, 10)
	for range 5 {
		go func() { results <- first.post(strings.NewReader(chat("x"))) }()
		go func() { results <- second.post(strings.NewReader(chat("x"))) }()
	}
	for range 10 {
		<-started
	}
	for _, r := range replicas[:2] {
		r.Listener.Close()
		r.CloseClientConnections()
	}
	for range 10 {
		got := <-results
		require.Equal(t, http.StatusOK, got.code)
		require.Equal(t, "r2", got.replica)
	}
	for range 10 {
		got := first.post(strings.NewReader(chat("x")))
		require.Equal(t, http.StatusOK, got.code)
		require.Equal(t, "r2", got.replica)
	}
}
