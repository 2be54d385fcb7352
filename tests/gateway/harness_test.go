package gateway

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/internal/freeport"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// An engine is a model server with OpenAI's HTTP API, as far as a test answers it.
type engine struct {
	*httptest.Server
	id      string
	answers atomic.Pointer[http.HandlerFunc] // replaces the engine's own answer
	served  atomic.Int64                     // requests

	mu      sync.Mutex // guards what follows
	bodies  []string
	headers []http.Header
}

// ServeHTTP answers with the engine's id and the length of the body, unless the test answers.
func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.served.Add(1)
	if h := e.answers.Load(); h != nil {
		(*h)(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.mu.Lock()
	e.bodies, e.headers = append(e.bodies, string(body)), append(e.headers, r.Header)
	e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"engine":%q,"length":%d,"usage":{"prompt_tokens":12,"completion_tokens":3}}`, e.id, len(body))
}

func (e *engine) address() string { return e.Listener.Addr().String() }

// startEngines starts three engines.
func startEngines(t testing.TB) (all []*engine) {
	t.Helper()
	for i, port := range freeport.Find(3) {
		e := &engine{id: fmt.Sprint("r", i)}
		e.Server = httptest.NewUnstartedServer(e)
		require.NoError(t, e.Listener.Close())
		lis, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		require.NoError(t, err)
		e.Listener = lis
		e.Config.Protocols = new(http.Protocols)
		e.Config.Protocols.SetHTTP1(true)
		e.Config.Protocols.SetUnencryptedHTTP2(true)
		e.Start()
		t.Cleanup(func() {
			e.CloseClientConnections()
			e.Close()
		})
		all = append(all, e)
	}
	return all
}

// answer makes all engines answer with a handler; nil = with their own answers.
func answer(engines []*engine, h http.HandlerFunc) {
	for _, e := range engines {
		if e.answers.Store(&h); h == nil {
			e.answers.Store(nil)
		}
	}
}

// A picker is a look-aside server with an endpoint picker: a process of its own.
type picker struct {
	*process
	t      testing.TB
	args   []string
	routes string // the address of its gRPC services
	port   int    // of the endpoint picker
}

// startPicker starts a picker for engines. deployment are fields of its deployment.
func startPicker(t testing.TB, engines []*engine, deployment string, flags ...string) *picker {
	t.Helper()
	var replicas []string
	for _, e := range engines {
		replicas = append(replicas, fmt.Sprintf("{id: %s, address: %q}", e.id, e.address()))
	}
	return startPickerOf(t, fmt.Sprintf("deployments:\n  chat:\n    replicas: [%s]\n%s\n",
		strings.Join(replicas, ", "), deployment), flags...)
}

// startPickerOf starts a picker with deployments.
func startPickerOf(t testing.TB, deployments string, flags ...string) *picker {
	t.Helper()
	ports := freeport.Find(2)
	p := &picker{t: t, routes: fmt.Sprint("127.0.0.1:", ports[0]), port: ports[1]}
	config := filepath.Join(t.TempDir(), "warmpath.yaml")
	require.NoError(t, os.WriteFile(config, []byte("listen: "+p.routes+"\nload_interval: 10ms\n"+deployments), 0o600))
	p.args = append([]string{"serve", "--config", config, "--ext-proc", fmt.Sprint("127.0.0.1:", p.port)}, flags...)
	p.begin()
	return p
}

// begin starts the process, again or for the first time.
func (p *picker) begin() {
	p.t.Helper()
	path, err := warmpath()
	require.NoError(p.t, err)
	p.process = start(p.t, path, p.args...)
	p.has(p.t, "warmpath serves")
}

// interrupt begins the orderly end of the process.
func (p *picker) interrupt() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.has(p.t, "shutting down")
}

// deployment returns the state of the first deployment.
func (p *picker) deployment() *warmpathv1.DeploymentStatus {
	p.t.Helper()
	conn, err := grpc.NewClient(p.routes, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(p.t, err)
	defer conn.Close()
	a, err := warmpathv1.NewStatusServiceClient(conn).GetStatus(p.t.Context(), new(warmpathv1.GetStatusRequest))
	require.NoError(p.t, err)
	return a.GetDeployments()[0]
}

// idle waits until no replica has load.
func (p *picker) idle() {
	p.t.Helper()
	eventually(p.t, func() bool { return p.ongoing() == 0 })
}

// ongoing is the number of requests that count as load.
func (p *picker) ongoing() (n uint32) {
	p.t.Helper()
	d := p.deployment()
	for _, r := range d.GetReplicas() {
		n += r.GetOngoing()
	}
	return n
}

// object is a part of Envoy's configuration.
type object = map[string]any

// modes are how Envoy shows requests and responses to the picker. Zero is what the Gateway API asks for: FULL_DUPLEX_STREAMED.
type modes struct {
	request  string // body mode
	response string // body mode
	headers  string // of responses: "SKIP" = they are not shown
	skip     bool   // the headers of requests are not shown
	failOpen bool
	upgrades bool // websockets pass without the picker
	original bool // the cluster is ORIGINAL_DST, without override_host
}

func (m modes) String() string {
	at := "override_host"
	if m.original {
		at = "original_dst"
	}
	return fmt.Sprint(at, " request ", m.request, " response ", m.response, m.headers)
}

// An envoy is an Envoy with the example's configuration but for its modes.
type envoy struct {
	*process
	t       testing.TB
	address string
	client  *http.Client
}

func startEnvoy(t testing.TB, p *picker, engines []*engine, m modes) *envoy {
	t.Helper()
	var addresses []string
	for _, e := range engines {
		addresses = append(addresses, e.address())
	}
	return startEnvoyOf(t, p, addresses, m)
}

// startEnvoyOf starts an Envoy in front of three addresses.
func startEnvoyOf(t testing.TB, p *picker, engines []string, m modes) *envoy {
	t.Helper()
	path := requireEnvoy(t)
	ports := freeport.Find(2)
	text, err := os.ReadFile(filepath.Join(root, "examples", "envoy", "envoy.yaml"))
	require.NoError(t, err)
	changes := []string{"port_value: 8080", fmt.Sprint("port_value: ", ports[0]), "port_value: 9002", fmt.Sprint("port_value: ", p.port)}
	for i, address := range engines {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		changes = append(changes, fmt.Sprint("port_value: 800", i), "port_value: "+port)
	}
	var c object
	require.NoError(t, yaml.Unmarshal([]byte(strings.NewReplacer(changes...).Replace(string(text))), &c))
	m.change(c)
	c["admin"] = object{"address": object{"socket_address": object{"address": "127.0.0.1", "port_value": ports[1]}}}
	config, err := yaml.Marshal(c)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(file, config, 0o600))
	args := []string{"--config-path", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"}
	if level := os.Getenv("ENVOY_LOG"); level != "" {
		args = append(args, "--component-log-level", "ext_proc:"+level)
	}
	e := &envoy{t: t, process: start(t, path, args...), address: fmt.Sprint("127.0.0.1:", ports[0])}
	e.client = &http.Client{Transport: new(http.Transport)}
	t.Cleanup(e.client.CloseIdleConnections)
	eventually(t, func() bool {
		a, err := e.client.Get(fmt.Sprintf("http://127.0.0.1:%d/ready", ports[1]))
		if err != nil {
			return false
		}
		defer a.Body.Close()
		return a.StatusCode == http.StatusOK
	}, "%s", e.process)
	return e
}

// change sets the modes in a configuration.
func (m modes) change(c object) {
	static := c["static_resources"].(object)
	listener := static["listeners"].([]any)[0].(object)
	http := listener["filter_chains"].([]any)[0].(object)["filters"].([]any)[0].(object)
	filter := http["typed_config"].(object)["http_filters"].([]any)[0].(object)["typed_config"].(object)
	mode := filter["processing_mode"].(object)
	if m.request != "" {
		mode["request_body_mode"] = m.request
	}
	if mode["request_body_mode"] != "FULL_DUPLEX_STREAMED" {
		mode["request_trailer_mode"] = "SKIP"
	}
	if mode["request_body_mode"] == "BUFFERED" { // of 1 MiB by default
		listener["per_connection_buffer_limit_bytes"] = 64 << 20
	}
	mode["response_body_mode"] = cmp.Or(m.response, "FULL_DUPLEX_STREAMED")
	if mode["response_body_mode"] == "NONE" {
		mode["response_trailer_mode"] = "SKIP"
	}
	if m.headers != "" {
		mode["response_header_mode"] = m.headers
	}
	if m.skip {
		mode["request_header_mode"] = "SKIP"
	}
	if m.upgrades {
		filters := http["typed_config"].(object)["http_filters"].([]any)
		upgrade := http["typed_config"].(object)["upgrade_configs"].([]any)[0].(object)
		upgrade["filters"] = filters[1:]
	}
	if m.failOpen {
		filter["failure_mode_allow"] = true
	}
	if m.original {
		cluster := static["clusters"].([]any)[0].(object)
		delete(cluster, "load_balancing_policy")
		delete(cluster, "load_assignment")
		cluster["type"], cluster["lb_policy"] = "ORIGINAL_DST", "CLUSTER_PROVIDED"
		cluster["original_dst_lb_config"] = object{"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"}
	}
}

// outcome is what a client sees of a request.
type outcome struct {
	code   int
	body   string
	header http.Header
}

func (e *envoy) do(method, path, body string, headers ...string) outcome {
	e.t.Helper()
	a := e.open(method, path, strings.NewReader(body), headers...)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	require.NoError(e.t, err)
	return outcome{a.StatusCode, string(text), a.Header}
}

// open begins a request, and returns its response.
func (e *envoy) open(method, path string, body io.Reader, headers ...string) *http.Response {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	e.t.Cleanup(cancel)
	q, err := http.NewRequestWithContext(ctx, method, "http://"+e.address+path, body)
	require.NoError(e.t, err)
	q.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	a, err := e.client.Do(q)
	require.NoError(e.t, err)
	return a
}

// chat is a request for a chat that begins with a text.
func chat(text string) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, text)
}

const completions = "/v1/chat/completions"
