package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/lab/apiserver"
	"github.com/warmpath/warmpath/internal/target"
)

func TestPoolTargets(t *testing.T) {
	for text, want := range map[string]inferencePool{
		"warmpath-inferencepool:///chat.llm":    {"chat", "llm"},
		"warmpath-inferencepool:///v1.chat.llm": {"v1.chat", "llm"},
		"warmpath-inferencepool:///chat":        {"chat", ""},
	} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		q, err := parsePool(*u)
		require.NoError(t, err)
		require.Equal(t, want, q)
	}
	for text, want := range map[string]string{
		"warmpath-inferencepool:///chat.llm:8000": "the pool has ports of its own",
		"warmpath-inferencepool://chat.llm":       "three slashes",
		"warmpath-inferencepool:///":              "name",
	} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		_, err = parsePool(*u)
		require.ErrorContains(t, err, want)
	}
}

// A poolLab is a namespace of a real API server, and what a resolver reports of a pool in it.
type poolLab struct {
	*testing.T
	server    *apiserver.Server
	namespace string

	mu     sync.Mutex    // guards what follows
	fleets []string      // all so far
	errs   []string      // all so far
	wake   chan struct{} // has room for one
}

// startPoolLab grants what the documented Role grants where granted, and nothing else.
func startPoolLab(t *testing.T, s *apiserver.Server, namespace string, granted bool) *poolLab {
	t.Helper()
	l := &poolLab{T: t, server: s, namespace: namespace, wake: make(chan struct{}, 1)}
	require.NoError(t, s.Namespace(t.Context(), namespace))
	token, err := s.ServiceAccount(t.Context(), namespace, "router")
	require.NoError(t, err)
	if granted {
		l.grant()
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600))
	config, err := s.Kubeconfig(filepath.Join(dir, "token"), namespace)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config"), config, 0o600))
	t.Setenv("KUBECONFIG", filepath.Join(dir, "config"))
	return l
}

func (l *poolLab) do(method, path, contentType, body string) {
	l.Helper()
	require.NoError(l, l.server.Do(l.Context(), method, path, contentType, []byte(body), nil))
}

func (l *poolLab) grant() {
	l.Helper()
	role, err := os.ReadFile("testdata/inferencepool-role.yaml")
	require.NoError(l, err)
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + l.namespace
	l.do(http.MethodPost, rbac+"/roles", "application/yaml", string(role))
	l.do(http.MethodPost, rbac+"/rolebindings", "", fmt.Sprintf(`{"metadata": {"name": "router"},
		"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "warmpath-inferencepool"},
		"subjects": [{"kind": "ServiceAccount", "name": "router", "namespace": %q}]}`, l.namespace))
}

// pods and pools are paths of the API.
func (l *poolLab) pods() string { return "/api/v1/namespaces/" + l.namespace + "/pods" }

func (l *poolLab) pools() string {
	return "/apis/inference.networking.k8s.io/v1/namespaces/" + l.namespace + "/inferencepools"
}

// create creates a pod on a node. It is not ready.
func (l *poolLab) create(name, metadata string) {
	l.Helper()
	l.do(http.MethodPost, l.pods(), "", fmt.Sprintf(`{"metadata": {"name": %q, "labels": {"app": "chat"}%s},
		"spec": {"nodeName": "n1", "containers": [{"name": "engine", "image": "engine"}]}}`, name, metadata))
}

// is writes the status of a pod as its kubelet does.
func (l *poolLab) is(name, ip, ready string) {
	l.Helper()
	l.patch(l.pods()+"/"+name+"/status", fmt.Sprintf(
		`{"status": {"podIP": %q, "podIPs": [{"ip": %q}], "conditions": [{"type": "Ready", "status": %q}]}}`, ip, ip, ready))
}

func (l *poolLab) patch(path, body string) {
	l.Helper()
	l.do(http.MethodPatch, path, "application/merge-patch+json", body)
}

// pool creates the pool chat of the pods with a label.
func (l *poolLab) pool(label string) {
	l.Helper()
	l.do(http.MethodPost, l.pools(), "", fmt.Sprintf(`{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
		"metadata": {"name": "chat"}, "spec": {"selector": {"matchLabels": {"app": %q}}, "targetPorts": [{"number": 8000}],
		"endpointPickerRef": {"name": "warmpath", "port": {"number": 9002}}}}`, label))
}

// channel is the resolver's channel, which writes down what it is given.
type poolChannel struct {
	resolver.ClientConn
	*poolLab
}

func (c poolChannel) UpdateState(s resolver.State) error {
	ids := []string{}
	for _, ep := range s.Endpoints {
		a := fleet.FromEndpoint(ep)
		text := a.ID + "=" + a.Address
		if a.Draining {
			text += " draining"
		}
		ids = append(ids, text)
	}
	c.note(&c.fleets, "["+strings.Join(ids, ", ")+"]")
	return nil
}

func (c poolChannel) ReportError(err error) { c.note(&c.errs, err.Error()) }

func (l *poolLab) note(in *[]string, text string) {
	l.mu.Lock()
	*in = append(*in, text)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// await waits until the last of what was noted is what is wanted, and returns how much was noted.
func (l *poolLab) await(in *[]string, want string) int {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), 30*time.Second)
	defer cancel()
	for {
		l.mu.Lock()
		n, last := len(*in), ""
		if n > 0 {
			last = (*in)[n-1]
		}
		l.mu.Unlock()
		if strings.Contains(last, want) {
			return n
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			l.Fatalf("want %s, have %s", want, last)
		}
	}
}

func (l *poolLab) fleet(want string) int { l.Helper(); return l.await(&l.fleets, "["+want+"]") }

// follow builds the resolver. The end of the test closes it.
func (l *poolLab) follow(log *slog.Logger) {
	l.Helper()
	u, err := url.Parse("warmpath-inferencepool:///chat." + l.namespace)
	require.NoError(l, err)
	r, err := target.Imported[target.PoolScheme].NewBuilder(log).Build(resolver.Target{URL: *u}, poolChannel{poolLab: l}, resolver.BuildOptions{})
	require.NoError(l, err)
	l.Cleanup(r.Close)
}

func TestInferencePool(t *testing.T) {
	s := apiserver.New(t)
	crd, err := os.ReadFile("testdata/inferencepool-crd.json")
	require.NoError(t, err)
	definitions := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	require.NoError(t, s.Do(t.Context(), http.MethodPost, definitions, "", crd, nil))
	require.Eventually(t, func() bool {
		return s.Do(t.Context(), http.MethodGet, "/apis/inference.networking.k8s.io/v1/inferencepools", "", nil, nil) == nil
	}, time.Minute, 20*time.Millisecond)
	for name, f := range map[string]func(*testing.T, *apiserver.Server){
		"pool": testPoolLife, "pods": testPoolPods, "role": testPoolRole, "annotations": testPoolAnnotations, "away": testPoolAway,
	} {
		t.Run(name, func(t *testing.T) { f(t, s) })
	}
}

// The pool comes after its follower and its pods. Its selector and its ports are followed; when it is deleted the last
// replicas stay.
func testPoolLife(t *testing.T, s *apiserver.Server) {
	l := startPoolLab(t, s, "life", true)
	l.create("a", "")
	l.is("a", "10.0.0.1", "True")
	l.follow(slog.Default())
	l.await(&l.errs, "there is no InferencePool chat in namespace life")
	l.pool("chat")
	l.fleet("a:8000=10.0.0.1:8000")

	l.create("b", "")
	l.is("b", "10.0.0.2", "True")
	l.fleet("a:8000=10.0.0.1:8000, b:8000=10.0.0.2:8000")
	l.patch(l.pods()+"/b", `{"metadata": {"labels": {"app": "code"}}}`)
	l.fleet("a:8000=10.0.0.1:8000")
	l.patch(l.pools()+"/chat", `{"spec": {"selector": {"matchLabels": {"app": "code"}}}}`)
	l.fleet("b:8000=10.0.0.2:8000")
	l.patch(l.pools()+"/chat", `{"spec": {"targetPorts": [{"number": 8001}, {"number": 8002}]}}`)
	l.fleet("b:8001=10.0.0.2:8001, b:8002=10.0.0.2:8002")
	n := l.fleet("b:8001=10.0.0.2:8001, b:8002=10.0.0.2:8002")

	l.do(http.MethodDelete, l.pools()+"/chat", "", "")
	l.await(&l.errs, "there is no InferencePool chat in namespace life")
	require.Equal(t, n, l.fleet("b:8001=10.0.0.2:8001, b:8002=10.0.0.2:8002"), "the last replicas stay")
	l.pool("chat")
	l.fleet("")
}

// Pods come, cease to be ready, are deleted with a grace period, and go.
func testPoolPods(t *testing.T, s *apiserver.Server) {
	l := startPoolLab(t, s, "pods", true)
	l.pool("chat")
	l.follow(slog.Default())
	l.fleet("")
	l.create("a", "")
	l.create("b", "")
	l.is("b", "10.0.0.2", "True")
	l.fleet("b:8000=10.0.0.2:8000")
	l.is("a", "10.0.0.1", "True")
	l.fleet("a:8000=10.0.0.1:8000, b:8000=10.0.0.2:8000")
	l.is("b", "10.0.0.2", "False")
	l.fleet("a:8000=10.0.0.1:8000")
	l.is("b", "10.0.0.2", "True")
	l.fleet("a:8000=10.0.0.1:8000, b:8000=10.0.0.2:8000")
	l.do(http.MethodDelete, l.pods()+"/a", "", "")
	l.fleet("a:8000=10.0.0.1:8000 draining, b:8000=10.0.0.2:8000")
	l.do(http.MethodDelete, l.pods()+"/a", "", `{"gracePeriodSeconds": 0}`)
	l.fleet("b:8000=10.0.0.2:8000")
	l.do(http.MethodDelete, l.pods()+"/b", "", `{"gracePeriodSeconds": 0}`)
	l.fleet("")
}

// Without the Role the error names what it lacks; with it the pool is followed. The Role grants no more than that.
func testPoolRole(t *testing.T, s *apiserver.Server) {
	l := startPoolLab(t, s, "role", false)
	l.pool("chat")
	l.follow(slog.Default())
	l.await(&l.errs, `cannot list resource "inferencepools" in API group "inference.networking.k8s.io" in the namespace "role"`)
	l.grant()
	l.fleet("")
	l.create("a", "")
	l.is("a", "10.0.0.1", "True")
	l.fleet("a:8000=10.0.0.1:8000")
}

// What a pod declares wrongly is logged once, however often the pod changes.
func testPoolAnnotations(t *testing.T, s *apiserver.Server) {
	l := startPoolLab(t, s, "annotations", true)
	l.pool("chat")
	l.create("a", `, "annotations": {"warmpath.dev/weight": "heavy", "warmpath.dev/models": "m"}`)
	l.is("a", "10.0.0.1", "True")
	path := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(path)
	require.NoError(t, err)
	defer out.Close()
	l.follow(slog.New(slog.NewTextHandler(out, nil)))
	l.fleet("a:8000=10.0.0.1:8000")
	l.is("a", "10.0.0.1", "False")
	l.fleet("")
	l.is("a", "10.0.0.1", "True")
	l.fleet("a:8000=10.0.0.1:8000")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "pod annotations/a: annotation warmpath.dev/weight"), "%s", text)
}

// While the API server is away the last replicas stay, and afterwards what has changed is found.
func testPoolAway(t *testing.T, s *apiserver.Server) {
	l := startPoolLab(t, s, "away", true)
	l.pool("chat")
	l.create("a", "")
	l.is("a", "10.0.0.1", "True")
	l.follow(slog.Default())
	n := l.fleet("a:8000=10.0.0.1:8000")
	s.Stop()
	l.await(&l.errs, "connect")
	require.NoError(t, s.Start(t.Context()))
	require.Equal(t, n, l.fleet("a:8000=10.0.0.1:8000"))
	l.is("a", "10.0.0.1", "False")
	l.fleet("")
}
