package kubernetes

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
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

// poolLab is a lab whose API server has InferencePools.
type poolLab struct{ *lab }

// startPoolLab makes a namespace in which a service account has exactly the documented Role, where it is granted.
func startPoolLab(t *testing.T, granted bool) poolLab {
	t.Helper()
	l := poolLab{startLab(t)}
	crd, err := os.ReadFile("testdata/inferencepool-crd.json")
	require.NoError(t, err)
	definition := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferencepools.inference.networking.k8s.io"
	// Server-side apply: each of these tests does it.
	l.do(http.MethodPatch, definition+"?fieldManager=test", "application/apply-patch+yaml", string(crd))
	require.Eventually(t, func() bool { return l.server.Do(t.Context(), http.MethodGet, l.pools(), "", nil, nil) == nil },
		time.Minute, 20*time.Millisecond)
	if granted {
		l.grantPool()
	}
	return l
}

func (l poolLab) grantPool() {
	l.Helper()
	role, err := os.ReadFile("testdata/inferencepool-role.yaml")
	require.NoError(l, err)
	l.bind("warmpath-inferencepool", string(role))
}

func (l poolLab) observePool() *observer {
	l.Helper()
	return l.observe("warmpath-inferencepool:///chat." + l.namespace)
}

// pods and pools are paths of the API.
func (l poolLab) pods() string { return "/api/v1/namespaces/" + l.namespace + "/pods" }

func (l poolLab) pools() string {
	return "/apis/inference.networking.k8s.io/v1/namespaces/" + l.namespace + "/inferencepools"
}

// create creates a pod on a node. It is not ready.
func (l poolLab) create(name, metadata string) {
	l.Helper()
	l.do(http.MethodPost, l.pods(), "", fmt.Sprintf(`{"metadata": {"name": %q, "labels": {"app": "chat"}%s},
		"spec": {"nodeName": "n1", "containers": [{"name": "engine", "image": "engine"}]}}`, name, metadata))
}

// is writes the status of a pod as its kubelet does.
func (l poolLab) is(name, ip, ready string) {
	l.Helper()
	l.patch(l.pods()+"/"+name+"/status", fmt.Sprintf(
		`{"status": {"podIP": %q, "podIPs": [{"ip": %q}], "conditions": [{"type": "Ready", "status": %q}]}}`, ip, ip, ready))
}

func (l poolLab) patch(path, body string) {
	l.Helper()
	l.do(http.MethodPatch, path, "application/merge-patch+json", body)
}

// pool creates the pool chat.
func (l poolLab) pool() {
	l.Helper()
	l.do(http.MethodPost, l.pools(), "", `{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
		"metadata": {"name": "chat"}, "spec": {"selector": {"matchLabels": {"app": "chat"}}, "targetPorts": [{"number": 8000}],
		"endpointPickerRef": {"name": "warmpath", "port": {"number": 9002}}}}`)
}

// missing waits until the missing pool was reported n times.
func (o *observer) missing(t *testing.T, times int) {
	t.Helper()
	o.until(t, "there is no pool", func(_ [][]policy.Attributes, errs []string) bool {
		n := 0
		for _, e := range errs {
			if strings.Contains(e, "there is no InferencePool chat in namespace") {
				n++
			}
		}
		return n == times
	})
}

// The pool is created after its follower and its pods. Its selector and its ports are followed; when it is deleted
// the last replicas stay.
func TestPoolComesAndGoes(t *testing.T) {
	l := startPoolLab(t, true)
	l.create("a", "")
	l.is("a", "10.0.0.1", "True")
	o := l.observePool()
	o.missing(t, 1)
	l.pool()
	o.fleet(t, "a:8000")

	l.create("b", "")
	l.is("b", "10.0.0.2", "True")
	o.fleet(t, "a:8000", "b:8000")
	l.patch(l.pods()+"/b", `{"metadata": {"labels": {"app": "code"}}}`)
	o.fleet(t, "a:8000")
	l.patch(l.pools()+"/chat", `{"spec": {"selector": {"matchLabels": {"app": "code"}}}}`)
	o.fleet(t, "b:8000")
	l.patch(l.pools()+"/chat", `{"spec": {"targetPorts": [{"number": 8001}, {"number": 8002}, {"number": 8003},
		{"number": 8004}, {"number": 8005}, {"number": 8006}, {"number": 8007}, {"number": 8008}]}}`)
	o.fleet(t, "b:8001", "b:8002", "b:8003", "b:8004", "b:8005", "b:8006", "b:8007", "b:8008")

	n := len(o.all())
	l.do(http.MethodDelete, l.pools()+"/chat", "", "")
	o.missing(t, 2)
	require.Len(t, o.all(), n, "the last replicas stay")
	l.pool()
	o.fleet(t, "a:8000")
}

// Pods come, cease to be ready, are deleted with a grace period, and go.
func TestPoolPods(t *testing.T) {
	l := startPoolLab(t, true)
	l.pool()
	o := l.observePool()
	o.fleet(t)
	l.create("a", "")
	l.create("b", "")
	l.is("b", "10.0.0.2", "True")
	o.fleet(t, "b:8000")
	l.is("a", "10.0.0.1", "True")
	o.fleet(t, "a:8000", "b:8000")
	l.is("b", "10.0.0.2", "False")
	o.fleet(t, "a:8000")
	l.is("b", "10.0.0.2", "True")
	o.fleet(t, "a:8000", "b:8000")
	l.do(http.MethodDelete, l.pods()+"/a", "", "")
	o.fleet(t, "a:8000!", "b:8000")
	l.do(http.MethodDelete, l.pods()+"/a", "", `{"gracePeriodSeconds": 0}`)
	o.fleet(t, "b:8000")
	l.do(http.MethodDelete, l.pods()+"/b", "", `{"gracePeriodSeconds": 0}`)
	o.fleet(t)
}

// Without the Role the error names what it lacks; with it the pool is followed.
func TestPoolRole(t *testing.T) {
	l := startPoolLab(t, false)
	l.pool()
	l.create("a", "")
	l.is("a", "10.0.0.1", "True")
	o := l.observePool()
	o.failed(t, `resource "inferencepools" in API group "inference.networking.k8s.io" in the namespace`)
	l.grantPool()
	o.fleet(t, "a:8000")
}

// A wrong declaration of a pod is logged once, however often the pod changes; its correct fields count.
func TestPoolDeclarations(t *testing.T) {
	l := startPoolLab(t, true)
	path := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(path)
	require.NoError(t, err)
	defer out.Close()
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(out, nil)))
	l.pool()
	l.create("a", `, "annotations": {"warmpath.dev/weight": "heavy", "warmpath.dev/models": "m"}`)
	l.is("a", "10.0.0.1", "True")
	o := l.observePool()
	o.fleet(t, "a:8000")
	a := o.all()[0][0]
	require.NotEmpty(t, a.Instance)
	a.Instance = ""
	require.Equal(t, policy.Attributes{ID: "a:8000", Address: "10.0.0.1:8000", Node: "n1", Models: []string{"m"}}, a)
	l.is("a", "10.0.0.1", "False")
	o.fleet(t)
	l.is("a", "10.0.0.1", "True")
	o.fleet(t, "a:8000")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), "/a: annotation warmpath.dev/weight"), "%s", text)
}

// While the API server is away the last replicas stay; after that the resolver has all changes.
func TestPoolWithoutAPIServer(t *testing.T) {
	l := startPoolLab(t, true)
	l.pool()
	l.create("a", "")
	l.is("a", "10.0.0.1", "True")
	o := l.observePool()
	o.fleet(t, "a:8000")
	l.server.Stop()
	o.failed(t, "connect")
	require.NoError(t, l.server.Start(t.Context()))
	require.Len(t, o.all(), 1)
	l.is("a", "10.0.0.1", "False")
	o.fleet(t)
}
