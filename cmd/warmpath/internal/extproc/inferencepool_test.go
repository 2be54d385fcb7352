package extproc_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
	"github.com/warmpath/warmpath/internal/apiserver"
	_ "github.com/warmpath/warmpath/resolver/kubernetes"
)

// A cluster is a namespace of a real API server that has InferencePools.
type cluster struct {
	testing.TB
	*apiserver.Server
}

const (
	podsPath  = "/api/v1/namespaces/llm/pods"
	poolsPath = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
)

// startCluster starts a cluster and configures this process to use it.
func startCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{t, apiserver.Shared(t)} // the only test of the package that uses it
	t.Cleanup(c.Close)
	crd, err := os.ReadFile("../../../../resolver/kubernetes/testdata/inferencepool-crd.json")
	require.NoError(t, err)
	c.do(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", string(crd))
	require.NoError(t, c.Namespace(t.Context(), "llm"))
	require.Eventually(t, func() bool {
		return c.Do(t.Context(), http.MethodGet, poolsPath, "", nil, nil) == nil
	}, time.Minute, 20*time.Millisecond)
	token, config := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "config")
	text, err := c.Kubeconfig(token, "llm")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(token, []byte(c.Token), 0o600))
	require.NoError(t, os.WriteFile(config, text, 0o600))
	t.Setenv("KUBECONFIG", config)
	return c
}

func (c cluster) do(method, path, contentType, body string) {
	c.Helper()
	require.NoError(c, c.Do(c.Context(), method, path, contentType, []byte(body), nil))
}

// pod creates a pod of the pool on a node. The pod is not ready.
func (c cluster) pod(name string) {
	c.Helper()
	c.do(http.MethodPost, podsPath, "", fmt.Sprintf(`{"metadata": {"name": %q, "labels": {"app": "chat"}},
		"spec": {"nodeName": "n1", "containers": [{"name": "engine", "image": "engine"}]}}`, name))
}

// ready writes the status of a pod as its kubelet does.
func (c cluster) ready(name, ip string, ready bool) {
	c.Helper()
	status := map[bool]string{true: "True", false: "False"}[ready]
	c.do(http.MethodPatch, podsPath+"/"+name+"/status", "application/merge-patch+json", fmt.Sprintf(
		`{"status": {"podIP": %q, "podIPs": [{"ip": %q}], "conditions": [{"type": "Ready", "status": %q}]}}`, ip, ip, status))
}

// fleet waits until the deployment has these replicas. A "~" marks a draining one.
func (p *picker) fleet(t testing.TB, want ...string) {
	t.Helper()
	var got []string
	require.Eventually(t, func() bool {
		got = nil
		for _, r := range p.deployment(t).GetReplicas() {
			id := r.GetId()
			if r.GetState() == "draining" {
				id = "~" + id
			}
			got = append(got, id)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	}, 30*time.Second, 5*time.Millisecond, "want %v, last %v", want, &got)
}

// pick makes one request and returns its destination and the fallbacks.
func (p *picker) pick(t testing.TB, text string) []string {
	t.Helper()
	g := p.open(t, duplex)
	g.headers(chatHeaders(), nil, false)
	g.body(prompt(text), true)
	to := g.picked()
	g.echoed(prompt(text), true)
	g.responds("200", "application/json", to[0], false)
	g.chunk(`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, true)
	g.done()
	return to
}

// unavailable makes one request that must be refused, since there is no replica.
func (p *picker) unavailable(t testing.TB) {
	t.Helper()
	g := p.open(t, duplex)
	g.headers(chatHeaders(), nil, false)
	g.body(prompt("hello"), true)
	code, _ := g.refused()
	require.Equal(t, http.StatusServiceUnavailable, code)
	g.done()
}

// A gateway's requests for an InferencePool of a real API server go to its ready pods.
func TestInferencePool(t *testing.T) {
	c := startCluster(t)
	p := startPicker(t, `
load_interval: 10ms
deployments:
  chat:
    policy: {kv_aware: {}}
    target: warmpath-inferencepool:///chat.llm
`, extproc.Options{Fallbacks: 2}, nil)
	prompts := 0
	picked := func() []string { // by twenty new prompts
		all := make(map[string]bool)
		for range 20 {
			prompts++
			all[p.pick(t, strings.Repeat(fmt.Sprint("prompt ", prompts, " "), 100))[0]] = true
		}
		return slices.Sorted(maps.Keys(all))
	}

	p.unavailable(t)
	c.pod("a")
	c.pod("b")
	c.ready("a", "10.0.0.1", true)
	c.do(http.MethodPost, poolsPath, "", `{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
		"metadata": {"name": "chat"}, "spec": {"selector": {"matchLabels": {"app": "chat"}}, "targetPorts": [{"number": 8000}],
		"endpointPickerRef": {"name": "warmpath", "port": {"number": 9002}}}}`)
	p.fleet(t, "a:8000")
	require.Equal(t, []string{"10.0.0.1:8000"}, picked())

	c.ready("b", "10.0.0.2", true)
	p.fleet(t, "a:8000", "b:8000")
	require.Equal(t, []string{"10.0.0.1:8000", "10.0.0.2:8000"}, picked())
	require.ElementsMatch(t, []string{"10.0.0.1:8000", "10.0.0.2:8000"}, p.pick(t, "hello"), "the other one is the fallback")

	c.ready("a", "10.0.0.1", false)
	p.fleet(t, "b:8000")
	require.Equal(t, []string{"10.0.0.2:8000"}, picked())

	c.ready("a", "10.0.0.1", true)
	c.do(http.MethodDelete, podsPath+"/b", "", "") // with its grace period
	p.fleet(t, "a:8000", "~b:8000")
	c.do(http.MethodPatch, poolsPath+"/chat", "application/merge-patch+json", `{"spec": {"targetPorts": [{"number": 8000}, {"number": 8001}]}}`)
	p.fleet(t, "a:8000", "a:8001", "~b:8000", "~b:8001")
	c.do(http.MethodDelete, podsPath+"/b", "", `{"gracePeriodSeconds": 0}`)
	p.fleet(t, "a:8000", "a:8001")
	require.Equal(t, []string{"10.0.0.1:8000", "10.0.0.1:8001"}, picked())

	c.ready("a", "10.0.0.1", false)
	p.fleet(t)
	p.unavailable(t)
	c.ready("a", "10.0.0.1", true)
	p.fleet(t, "a:8000", "a:8001")
}
