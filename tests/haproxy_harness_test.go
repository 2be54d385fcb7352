package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/httpendpoint"
	"github.com/warmpath/warmpath/server"
)

// httpReplica is a model server with OpenAI's HTTP API, as far as HAProxy uses it.
type httpReplica struct {
	*httptest.Server
	name string
	post atomic.Pointer[http.HandlerFunc] // answers POST in place of the replica

	mu     sync.Mutex // guards what follows
	bodies []string
	ranks  []string
}

func (r *httpReplica) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/health" {
		return
	}
	if post := r.post.Load(); post != nil {
		post.ServeHTTP(w, q)
		return
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.bodies = append(r.bodies, string(body))
	r.ranks = append(r.ranks, q.Header.Get("X-Data-Parallel-Rank"))
	r.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	for _, chunk := range []string{r.name, fmt.Sprint(len(body)), "[DONE]"} {
		fmt.Fprintf(w, "data: %s\n\n", chunk)
		_ = http.NewResponseController(w).Flush()
	}
}

func (r *httpReplica) served() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.bodies...)
}

func (r *httpReplica) addr() string { return r.Listener.Addr().String() }

// frontend is a HAProxy with the example's configuration, and its backends.
type frontend struct {
	t        *testing.T
	url      string
	replicas []*httpReplica
	client   *http.Client
	log      logged
}

func (f *frontend) post(body io.Reader, headers ...string) outcome {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/chat/completions", body)
	require.NoError(f.t, err)
	for i := 0; i < len(headers); i += 2 {
		q.Header[headers[i]] = []string{headers[i+1]}
	}
	a, err := f.client.Do(q)
	require.NoError(f.t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	require.NoError(f.t, err)
	return outcome{a.StatusCode, a.Header.Get("X-Warmpath-Replica"), a.Header.Get(httpendpoint.HeaderReason), string(text)}
}

// startHAProxy starts the example in front of three replicas, with these look-aside servers.
func startHAProxy(t *testing.T, a, b string, replicas []*httpReplica, env ...string) *frontend {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	needs(t, "haproxy", err)
	f := &frontend{t: t, replicas: replicas, client: &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}}
	listen := freeAddr(t)
	f.url = "http://" + listen
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "-db", "-C", filepath.Join("..", "examples", "haproxy"), "-f", patientHAProxy(t))
	cmd.Env = append(os.Environ(), "WARMPATH_LISTEN="+listen, "WARMPATH_ASK="+freeAddr(t), "WARMPATH_SERVER_A="+a, "WARMPATH_SERVER_B="+b, "WARMPATH_TIMEOUT=20s")
	for i, r := range replicas {
		cmd.Env = append(cmd.Env, fmt.Sprintf("WARMPATH_REPLICA_%d=%s", i, r.addr()))
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &f.log, &f.log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		stop()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("HAProxy's log:\n%s", &f.log)
		}
	})
	answers(t, listen)
	return f
}

// patientHAProxy is the example's configuration, where no server is down because this process stands still for a second.
func patientHAProxy(t *testing.T) (path string) {
	t.Helper()
	text := readDoc(t, "examples/haproxy/haproxy.cfg")
	for is, wanted := range map[string]string{
		"timeout check 1s\n":           "timeout check 20s\n",
		"option httpchk GET /health\n": "option httpchk GET /health\n    timeout check 20s\n",
	} {
		require.Equal(t, 1, strings.Count(text, is), is)
		text = strings.Replace(text, is, wanted, 1)
	}
	path = filepath.Join(t.TempDir(), "haproxy.cfg")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func httpReplicas(t *testing.T) []*httpReplica {
	t.Helper()
	all := make([]*httpReplica, 3)
	for i := range all {
		r := &httpReplica{name: fmt.Sprint("r", i)}
		r.Server = httptest.NewUnstartedServer(r)
		require.NoError(t, r.Listener.Close())
		r.Listener = listenLoopback(t) // no other listener takes the address of a replica that is closed
		r.Start()
		t.Cleanup(r.Close)
		all[i] = r
	}
	return all
}

// httpLookAside is a look-aside server for the replicas. It returns the address of its HTTP endpoint.
func httpLookAside(t *testing.T, replicas []*httpReplica, policy, more string) (*server.Server, string) {
	t.Helper()
	var fleet strings.Builder
	for _, r := range replicas {
		fmt.Fprintf(&fleet, "    - {id: %s, address: %q, models: [llama]}\n", r.name, r.addr())
	}
	c, err := server.ParseConfig([]byte("http: {listen: '127.0.0.1:0'}\n" + more + "deployments:\n  chat:\n    policy: {" + policy + "}\n    replicas:\n" + fleet.String()))
	require.NoError(t, err)
	s, err := server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	lis := listenLoopback(t)
	served := make(chan error, 1)
	go func() { served <- s.ServeRoutes(lis) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-served)
	})
	return s, lis.Addr().String()
}

// outcome is what a client sees of a request.
type outcome struct {
	code            int
	replica, reason string // from the headers
	body            string
}

func chat(system string) string {
	return `{"model":"llama","messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"hi"}]}`
}

// name names a replica, in the form of the look-aside server's answer.
func name(w http.ResponseWriter, id string) {
	w.Header().Set(httpendpoint.HeaderReason, "ring")
	fmt.Fprintf(w, `{"replica_id":%q,"host":"h","port":1}`, id)
}

// fakeServer is the server that HAProxy asks in place of a look-aside server.
type fakeServer struct {
	*httptest.Server

	mu        sync.Mutex // guards what follows
	bodies    []string
	questions []http.Header
}

func (f *fakeServer) addr() string { return f.Listener.Addr().String() }

func (f *fakeServer) receivedBodies() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.bodies...)
}

func (f *fakeServer) asked() []http.Header {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]http.Header(nil), f.questions...)
}

func newFakeServer(t *testing.T, answer http.HandlerFunc) *fakeServer {
	t.Helper()
	f := new(fakeServer)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == httpendpoint.HealthPath {
			return
		}
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		f.bodies, f.questions = append(f.bodies, string(body)), append(f.questions, r.Header)
		f.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// babbler accepts connections and sends bytes that are not HTTP.
func babbler(t *testing.T) string {
	t.Helper()
	lis := listenLoopback(t)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			all.Go(func() { babble(c) })
		}
	})
	t.Cleanup(func() {
		lis.Close()
		all.Wait()
	})
	return lis.Addr().String()
}

// babble answers health checks correctly and every other request with garbage.
func babble(c net.Conn) {
	defer c.Close()
	b := make([]byte, 4096)
	n, _ := c.Read(b)
	if bytes.Contains(b[:n], []byte(httpendpoint.HealthPath)) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		return
	}
	_, _ = io.WriteString(c, "220 mail.example.org ESMTP\r\n")
}
