package deploy

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/internal/apiserver"
)

// published are the custom resource definitions that the manifests use, from the modules of their projects.
var published = map[string][]string{
	keda: {"config/crd/bases/keda.sh_scaledobjects.yaml"},
	"github.com/prometheus-operator/prometheus-operator@v0.85.0": {
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
	},
	"sigs.k8s.io/gateway-api@v1.6.3":                     {"config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"},
	"sigs.k8s.io/gateway-api-inference-extension@v1.4.0": {"config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"},
}

// moduleDir returns the folder of a module. If the module is missing, it is downloaded and checked against Go's
// checksum database.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir() // outside of any module: its requirements do not apply
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	var m struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &m))
	return m.Dir
}

const keda = "github.com/kedacore/keda/v2@v2.21.0"

// The server's copy of KEDA's proto matches the original: calls, fields and their numbers.
func TestScalerIsKEDAs(t *testing.T) {
	lines := func(path string) (all []string) {
		in := ""
		for line := range strings.Lines(string(read(t, path))) {
			line, _, _ = strings.Cut(line, "//")
			line = strings.NewReplacer(" {}", "", ";", "", "_", "").Replace(strings.ToLower(strings.TrimSpace(line)))
			switch words := strings.Fields(line); {
			case len(words) == 0:
			case words[0] == "message" || words[0] == "service":
				in = line
			case words[0] == "package" || words[0] == "rpc" || strings.Contains(line, " = "):
				all = append(all, in+line)
			}
		}
		return slices.DeleteFunc(all, func(line string) bool { return strings.HasPrefix(line, "option") || strings.HasPrefix(line, "syntax") })
	}
	ours := lines(root + "/cmd/warmpath/internal/keda/externalscaler/externalscaler.proto")
	require.Len(t, ours, 5+3+1+1+2+2+1+2)
	require.Subset(t, lines(filepath.Join(moduleDir(t, keda), "pkg/scalers/externalscaler/externalscaler.proto")), ours)
}

// A cluster is an API server with the custom resources of the manifests.
type cluster struct {
	*apiserver.Server
	resources map[string]map[string]any // of APIResource, by apiVersion/kind
}

// shared is the cluster of all tests, nil until the first.
var shared *cluster

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{apiserver.Shared(t), make(map[string]map[string]any)}
	if shared != nil {
		return shared
	}
	shared = c
	for module, files := range published {
		dir := moduleDir(t, module)
		for _, f := range files {
			raw := read(t, filepath.Join(dir, f))
			var crd object
			require.NoError(t, yaml.Unmarshal(raw, &crd))
			path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + crd.text("metadata", "name")
			require.NoError(t, c.Do(t.Context(), http.MethodPatch, path+"?fieldManager=test&force=true", "application/apply-patch+yaml", raw, nil))
			require.Eventually(t, func() bool {
				var now object
				require.NoError(t, c.Do(t.Context(), http.MethodGet, path, "", nil, &now))
				conditions, _ := now.at("status", "conditions").([]any)
				return slices.ContainsFunc(conditions, func(x any) bool {
					is := object(x.(map[string]any))
					return is.text("type") == "Established" && is.text("status") == "True"
				})
			}, 30*time.Second, 20*time.Millisecond, f)
		}
	}
	require.NoError(t, c.apply(t, object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": namespace, "labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, ""))
	return c
}

// path returns the URL path of an object, by the API server's own list of resources.
func (c *cluster) path(t *testing.T, o object) string {
	t.Helper()
	version := o.text("apiVersion")
	base := "/apis/" + version
	if !strings.Contains(version, "/") {
		base = "/api/" + version
	}
	kind := version + "/" + o.text("kind")
	require.Eventually(t, func() bool { // a custom resource appears in the list a moment later
		var list struct{ Resources []map[string]any }
		if c.Do(t.Context(), http.MethodGet, base, "", nil, &list) != nil {
			return false
		}
		for _, r := range list.Resources {
			if r["kind"] == o.text("kind") && !strings.Contains(r["name"].(string), "/") {
				c.resources[kind] = r
			}
		}
		return c.resources[kind] != nil
	}, 30*time.Second, 50*time.Millisecond, kind)
	r := c.resources[kind]
	if r["namespaced"] == true {
		require.NotEmpty(t, o.text("metadata", "namespace"), o)
		base += "/namespaces/" + o.text("metadata", "namespace")
	}
	return base + "/" + r["name"].(string) + "/" + o.text("metadata", "name")
}

// apply applies an object on the server. A field that does not exist is an error.
func (c *cluster) apply(t *testing.T, o object, query string) error {
	t.Helper()
	body, err := json.Marshal(o)
	require.NoError(t, err)
	return c.Do(t.Context(), http.MethodPatch, c.path(t, o)+"?fieldManager=test&force=true&fieldValidation=Strict"+query,
		"application/apply-patch+yaml", body, nil)
}

// as returns a cluster that authenticates with a token.
func (c *cluster) as(token string) *apiserver.Server {
	s := *c.Server
	s.Token = token
	return &s
}

// namespace is the namespace of the manifests. It admits only Pods of the "restricted" standard.
const namespace = "models"

// The API server accepts every manifest, and every Pod under the strictest security standard. Every reference names
// an object of the same kustomization.
func TestManifestsAreAccepted(t *testing.T) {
	c := startCluster(t)
	for _, name := range kustomizations(t) {
		all := render(t, name)
		for _, o := range all {
			t.Run(name+"/"+o.String(), func(t *testing.T) {
				require.NoError(t, c.apply(t, o, "&dryRun=All"))
				spec, _ := o.at("spec", "template", "spec").(map[string]any)
				if spec == nil {
					return
				}
				require.NoError(t, c.apply(t, object{"apiVersion": "v1", "kind": "Pod", "spec": spec,
					"metadata": map[string]any{"name": "one", "namespace": namespace}}, "&dryRun=All"))
				if account, set := spec["serviceAccountName"].(string); set {
					find(t, all, "ServiceAccount/"+account)
				}
				volumes, _ := spec["volumes"].([]any)
				for _, v := range volumes {
					volume := object(v.(map[string]any))
					if name := volume.text("configMap", "name"); name != "" {
						find(t, all, "ConfigMap/"+name)
					} else if name := volume.text("secret", "secretName"); name != "" {
						require.Contains(t, string(read(t, root+"/docs/cluster.md")), "create secret generic "+name)
					} else {
						require.NotNil(t, volume.at("emptyDir"), "%v", volume)
					}
				}
			})
		}
	}
	typo := find(t, render(t, "server"), "Deployment/warmpath")
	typo["spec"].(map[string]any)["replica"] = 1
	require.ErrorContains(t, c.apply(t, typo, "&dryRun=All"), "replica", "a mistake would be found")
}

// The permissions of the shipped accounts.
var (
	followsServices = []string{"discovery.k8s.io/endpointslices list", "discovery.k8s.io/endpointslices watch"}
	followsPools    = []string{
		"/pods list", "/pods watch",
		"inference.networking.k8s.io/inferencepools list", "inference.networking.k8s.io/inferencepools watch",
	}
)

// roles applies a kustomization, and checks that an account of it has exactly these permissions.
func (c *cluster) roles(t *testing.T, name, account string, want []string) (token string) {
	t.Helper()
	for _, o := range render(t, name) {
		require.NoError(t, c.apply(t, o, ""), o)
	}
	token, err := c.NewToken(t.Context(), namespace, account)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the API server applies roles a moment later
		return slices.Equal(want, c.allowed(t, token, namespace))
	}, 30*time.Second, 50*time.Millisecond, "%v", want)
	require.Empty(t, c.allowed(t, token, "default"))
	own := c.as(token)
	get := func(path string) error { return own.Do(t.Context(), http.MethodGet, path, "", nil, nil) }
	for path, needs := range map[string]string{
		"/apis/discovery.k8s.io/v1/namespaces/models/endpointslices":             "discovery.k8s.io/endpointslices list",
		"/api/v1/namespaces/models/pods":                                         "/pods list",
		"/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools":  "inference.networking.k8s.io/inferencepools list",
		"/apis/discovery.k8s.io/v1/endpointslices":                               "none",
		"/api/v1/namespaces/models/secrets":                                      "none",
		"/api/v1/namespaces/models/configmaps/warmpath":                          "none",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/models/roles":             "none",
		"/apis/apps/v1/namespaces/models/deployments/warmpath":                   "none",
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices":            "none",
		"/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools": "none",
	} {
		if slices.Contains(want, needs) {
			require.NoError(t, get(path), path)
		} else {
			require.ErrorContains(t, get(path), "403 Forbidden", path)
		}
	}
	err = own.Do(t.Context(), http.MethodPost, "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices", "",
		[]byte(`{"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": []}`), nil)
	require.ErrorContains(t, err, "403 Forbidden")
	return token
}

// With the shipped config and the token of the shipped account, the server finds the replicas of its Service, and
// later ones too.
func TestServerFollowsItsService(t *testing.T) {
	c := startCluster(t)
	s := c.serve(t, "server", c.roles(t, "server", "warmpath", followsServices))
	for _, pods := range [][]string{{"engines-0"}, {"engines-0", "engines-1"}} {
		require.NoError(t, c.apply(t, slice("10.0.0.", 50051, pods), ""))
		s.lists(t, pods)
	}
	_, command, ok := strings.Cut(page(t), "exec deploy/warmpath -- /warmpath ")
	require.True(t, ok)
	command, _, _ = strings.Cut(command, "\n")
	out, err := exec.CommandContext(t.Context(), s.cmd.Path, replaced(strings.Fields(command), "127.0.0.1:4770", s.at)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "engines-1")
}

// The same with an InferencePool.
func TestServerFollowsItsPool(t *testing.T) {
	c := startCluster(t)
	s := c.serve(t, "gateway", c.roles(t, "gateway", "warmpath", followsPools))
	spec := find(t, render(t, "quickstart"), "StatefulSet/engines")
	for _, ids := range [][]string{{"engines-0:8000"}, {"engines-0:8000", "engines-1:8000"}} { // by the pool's port
		name := strings.TrimSuffix(ids[len(ids)-1], ":8000")
		pod := object{"apiVersion": "v1", "kind": "Pod", "spec": spec.at("spec", "template", "spec"), "metadata": map[string]any{
			"name": name, "namespace": namespace, "labels": spec.at("spec", "template", "metadata", "labels"),
		}}
		require.NoError(t, c.apply(t, pod, ""))
		ip := "10.0.1.1" + name[len(name)-1:]
		body, err := json.Marshal(object{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name}, "status": map[string]any{
			"podIP": ip, "podIPs": []any{map[string]any{"ip": ip}}, "phase": "Running",
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		}})
		require.NoError(t, err)
		require.NoError(t, c.Do(t.Context(), http.MethodPatch, c.path(t, pod)+"/status?fieldManager=kubelet&force=true",
			"application/apply-patch+yaml", body, nil))
		s.lists(t, ids)
	}
}

// replayed is the output of a replay.
type replayed struct {
	Results []struct {
		Policy           string
		Requests, Errors int
		Cached           float64 `json:"cached_token_ratio"`
	}
}

// The quickstart's calls reach its engines: the Job's own command, with the token of its account, against the
// StatefulSet's command, which runs here instead of in pods. A machine that stands still for a second sends calls at
// once that follow one another, and the prefix of the later one is not cached yet: the Job runs again.
func TestQuickstartCalls(t *testing.T) {
	c := startCluster(t)
	all := render(t, "quickstart")
	token := c.roles(t, "client", "chat-client", followsServices)
	job := find(t, all, "Job/calls")
	volumes := job.at("spec", "template", "spec", "volumes").([]any)
	trace := find(t, all, "ConfigMap/"+object(volumes[0].(map[string]any)).text("configMap", "name")).text("data", "calls.jsonl")
	command := replaced(args(t, job), "/calls/calls.jsonl", write(t, "calls.jsonl", trace))
	command = append(replaced(command, "///engines:", "///calls:"), "--json")
	var result replayed
	asOnThePage := func() bool {
		return len(result.Results) == 2 &&
			math.Abs(result.Results[0].Cached-0.20) <= 0.05 && math.Abs(result.Results[1].Cached-0.67) <= 0.05
	}
	for end := time.Now().Add(3 * time.Minute); !asOnThePage(); {
		require.True(t, time.Now().Before(end), "%+v", result)
		c.newEngines(t, find(t, all, "StatefulSet/engines"))
		calls := c.run(t, command, token)
		result = replayed{}
		if err := calls.wait(); err != nil { // it sent them late
			t.Logf("%v: %s", err, calls)
			continue
		}
		require.NoError(t, json.Unmarshal([]byte(calls.out.String()), &result), "%s", calls)
	}
	for _, p := range result.Results {
		require.Equal(t, strings.Count(trace, "\n"), p.Requests)
		require.Zero(t, p.Errors, p.Policy)
	}
	require.Contains(t, page(t), fmt.Sprintf("sends %d calls", strings.Count(trace, "\n")))
}

// newEngines starts engines as a StatefulSet does, and has Kubernetes list them, and no others, for the Service "calls".
func (c *cluster) newEngines(t *testing.T, set object) {
	t.Helper()
	ip := ownAddress(t)
	for i := range 3 {
		e := c.run(t, replaced(args(t, set), "0.0.0.0:50051", ip+":0"), "")
		e.until(t, func() bool { return listens.MatchString(e.String()) })
		port, err := strconv.Atoi(listens.FindStringSubmatch(e.String())[1])
		require.NoError(t, err)
		o := slice(ip, port, []string{"engines-" + strconv.Itoa(i)}) // a slice has one port for all of its endpoints
		o["metadata"].(map[string]any)["name"] = "engines-of-calls-" + strconv.Itoa(i)
		o["metadata"].(map[string]any)["labels"] = map[string]any{"kubernetes.io/service-name": "calls"}
		require.NoError(t, c.apply(t, o, ""))
	}
}

var listens = regexp.MustCompile(`listens on \S+:(\d+)`)

// ownAddress is an address that the API server accepts for a pod: it refuses loopback addresses.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		if n := a.(*net.IPNet); n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	if os.Getenv("WARMPATH_REQUIRE_ALL") == "" {
		t.Skip("this machine has no address but the loopback")
	}
	require.Fail(t, "this machine has no address but the loopback")
	return ""
}

// args returns the arguments of the only container of a workload.
func args(t *testing.T, o object) (all []string) {
	t.Helper()
	containers := o.at("spec", "template", "spec", "containers").([]any)
	require.Len(t, containers, 1)
	for _, a := range containers[0].(map[string]any)["args"].([]any) {
		all = append(all, a.(string))
	}
	return all
}

func replaced(args []string, from, to string) (all []string) {
	for _, a := range args {
		all = append(all, strings.ReplaceAll(a, from, to))
	}
	return all
}

// A served process is a look-aside server.
type served struct {
	*process
	at string
}

// serve runs a server with the config and the arguments of a kustomization.
func (c *cluster) serve(t *testing.T, name, token string) served {
	t.Helper()
	all := render(t, name)
	config := find(t, all, "ConfigMap/warmpath").text("data", "warmpath.yaml")
	config = regexp.MustCompile(`(?m)^metrics: .*$`).ReplaceAllString(config, "metrics: 127.0.0.1:0")
	command := replaced(args(t, find(t, all, "Deployment/warmpath")), "/etc/warmpath/warmpath.yaml", write(t, "warmpath.yaml", config))
	p := c.run(t, append(replaced(command, "0.0.0.0:9002", "127.0.0.1:0"), "--listen", "127.0.0.1:0"), token)
	address := regexp.MustCompile(`serves 1 deployment on ([0-9.:]+)`)
	p.until(t, func() bool { return address.MatchString(p.String()) })
	return served{p, address.FindStringSubmatch(p.String())[1]}
}

// lists waits until the server has these replicas and no others.
func (s served) lists(t *testing.T, ids []string) {
	t.Helper()
	s.until(t, func() bool {
		out, err := exec.CommandContext(s.ctx, s.cmd.Path, "top", "--once", "--json", "--server", s.at).Output()
		var status struct {
			Deployments []struct{ Replicas []struct{ ID string } }
		}
		if err != nil || json.Unmarshal(out, &status) != nil || len(status.Deployments) != 1 {
			return false
		}
		var now []string
		for _, r := range status.Deployments[0].Replicas {
			now = append(now, r.ID)
		}
		slices.Sort(now)
		return slices.Equal(ids, now)
	})
}

// allowed returns the permissions of a token in a namespace, without those of every account.
func (c *cluster) allowed(t *testing.T, token, in string) (all []string) {
	t.Helper()
	require.NoError(t, c.apply(t, object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{
		"name": "without-roles", "namespace": namespace,
	}}, ""))
	other, err := c.NewToken(t.Context(), namespace, "without-roles")
	require.NoError(t, err)
	every := c.rules(t, other, in)
	return slices.DeleteFunc(c.rules(t, token, in), func(rule string) bool { return slices.Contains(every, rule) })
}

// rules returns the RBAC rules of a token.
func (c *cluster) rules(t *testing.T, token, in string) (all []string) {
	t.Helper()
	var answer struct {
		Status struct {
			ResourceRules []struct{ Verbs, APIGroups, Resources, ResourceNames []string }
		}
	}
	body, err := json.Marshal(object{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
		"spec": map[string]any{"namespace": in}})
	require.NoError(t, err)
	require.NoError(t, c.as(token).Do(t.Context(), http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "", body, &answer))
	for _, r := range answer.Status.ResourceRules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					all = append(all, group+"/"+resource+" "+verb)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// slice is the EndpointSlice that Kubernetes writes for the Service "engines" with ready pods. ip is the address of
// all pods or, if it ends with a dot, their prefix.
func slice(ip string, port int, pods []string) object {
	var endpoints []any
	for i, pod := range pods {
		address := ip
		if strings.HasSuffix(ip, ".") {
			address += strconv.Itoa(i + 1)
		}
		endpoints = append(endpoints, map[string]any{
			"addresses": []any{address}, "conditions": map[string]any{"ready": true},
			"targetRef": map[string]any{"kind": "Pod", "name": pod, "namespace": namespace, "uid": "uid-" + pod},
		})
	}
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": map[string]any{
			"name": "engines-1", "namespace": namespace,
			"labels": map[string]any{"kubernetes.io/service-name": "engines"},
		},
		"ports":     []any{map[string]any{"name": "grpc", "port": port, "protocol": "TCP"}},
		"endpoints": endpoints,
	}
}
