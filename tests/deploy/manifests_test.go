// Package deploy tests the manifests in deploy, and the image, as a user applies them: with Kustomize and a real API
// server.
package deploy

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	root      = "../.."
	kustomize = root + "/deploy/kustomize"
)

var update = flag.Bool("update", false, "write the Prometheus rules of deploy anew")

// An object is a Kubernetes object.
type object map[string]any

// at returns the value at a path of keys, or nil.
func (o object) at(path ...string) any {
	var v any = map[string]any(o)
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

func (o object) text(path ...string) string {
	s, _ := o.at(path...).(string)
	return s
}

func (o object) String() string { return o.text("kind") + "/" + o.text("metadata", "name") }

// render returns the objects of a kustomization.
func render(t *testing.T, name string) (all []object) {
	t.Helper()
	found, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(kustomize, name))
	require.NoError(t, err)
	for _, r := range found.Resources() {
		o, err := r.Map()
		require.NoError(t, err)
		all = append(all, o)
	}
	require.NotEmpty(t, all)
	return all
}

// kustomizations are the folders that a user applies, by name.
func kustomizations(t *testing.T) (names []string) {
	t.Helper()
	components := make(map[string]bool) // whether one of them uses it
	var used strings.Builder
	require.NoError(t, filepath.WalkDir(kustomize, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		raw := read(t, path)
		used.Write(raw)
		var k struct{ Kind string }
		require.NoError(t, yaml.Unmarshal(raw, &k))
		dir := filepath.Base(filepath.Dir(path))
		if k.Kind == "Component" {
			components[dir] = true
		} else {
			names = append(names, dir)
		}
		return nil
	}))
	require.Len(t, components, 2)
	for c := range components {
		require.Contains(t, used.String(), "../components/"+c+"\n", "a component that no kustomization has")
	}
	require.GreaterOrEqual(t, len(names), 3)
	return names
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return raw
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// find returns the object of a kind and name.
func find(t *testing.T, all []object, name string) object {
	t.Helper()
	for _, o := range all {
		if o.String() == name {
			return o
		}
	}
	require.Fail(t, "there is no "+name)
	return nil
}

// The Deployments mount configs that their command accepts, on the ports of the manifests.
func TestConfigsAreAccepted(t *testing.T) {
	path, checked := build(t), 0
	for _, name := range kustomizations(t) {
		for _, o := range render(t, name) {
			if o.String() != "ConfigMap/warmpath" {
				continue
			}
			config := write(t, "warmpath.yaml", o.text("data", "warmpath.yaml"))
			out, err := exec.CommandContext(t.Context(), path, "serve", "--check", "--config", config).CombinedOutput()
			require.NoError(t, err, "%s: %s", name, out)
			ports(t, o.text("data", "warmpath.yaml"), render(t, name))
			checked++
		}
	}
	require.GreaterOrEqual(t, checked, 4)
}

// ports checks that the Deployment, its probes and the Service have the ports of a config.
func ports(t *testing.T, config string, all []object) {
	t.Helper()
	var c struct{ Listen, Metrics string }
	require.NoError(t, yaml.Unmarshal([]byte(config), &c))
	text, err := yaml.Marshal(find(t, all, "Deployment/warmpath"))
	require.NoError(t, err)
	grpc, metrics := strings.TrimPrefix(c.Listen, "0.0.0.0:"), strings.TrimPrefix(c.Metrics, "0.0.0.0:")
	require.Contains(t, string(text), fmt.Sprintf("- containerPort: %s\n          name: grpc\n", grpc))
	require.Contains(t, string(text), fmt.Sprintf("- containerPort: %s\n          name: metrics\n", metrics))
	require.Equal(t, 3, strings.Count(string(text), fmt.Sprintf("grpc:\n            port: %s\n", grpc)), "a probe")
	text, err = yaml.Marshal(find(t, all, "Service/warmpath"))
	require.NoError(t, err)
	require.Contains(t, string(text), "port: "+grpc+"\n    targetPort: grpc\n")
	require.Contains(t, string(text), "port: "+metrics+"\n    targetPort: metrics\n")
}

// page is the page of docs on Kubernetes.
func page(t *testing.T) string { return string(read(t, root+"/docs/kubernetes.md")) }

// pageLine returns the line of the page with this prefix.
func pageLine(t *testing.T, beginning string) string {
	t.Helper()
	_, rest, found := strings.Cut(page(t), "\n"+beginning)
	require.True(t, found, "there is no line %q", beginning)
	line, _, _ := strings.Cut(rest, "\n")
	return beginning + line
}

// The page's commands name only things that exist. TestServerFollowsItsService runs the command itself.
func TestPage(t *testing.T) {
	_, block, ok := strings.Cut(page(t), "```sh\n")
	require.True(t, ok)
	block, _, _ = strings.Cut(block, "```")
	all := render(t, "quickstart")
	commands := map[string]int{}
	for line := range strings.Lines(block) {
		line = strings.TrimSpace(line)
		switch words := strings.Fields(line); {
		case strings.HasPrefix(line, "CGO_ENABLED=0 "): // build runs it
		case strings.HasPrefix(line, "docker build -t "), strings.HasPrefix(line, "kind load docker-image "):
			image := words[3]
			for _, o := range []string{"Deployment/warmpath", "StatefulSet/engines", "Job/calls"} {
				text, err := yaml.Marshal(find(t, all, o))
				require.NoError(t, err)
				require.Contains(t, string(text), "image: "+image+"\n")
			}
		case line == "kind create cluster":
		case line == "kubectl create namespace "+namespace:
		case strings.HasPrefix(line, "kubectl apply -k "):
			require.Equal(t, "deploy/kustomize/quickstart", words[3])
		default:
			require.Regexp(t, `^kubectl -n `+namespace+` .*(job/calls|deploy/warmpath)`, line)
		}
		commands[strings.Fields(line)[0]]++
	}
	require.Equal(t, map[string]int{"CGO_ENABLED=0": 1, "docker": 1, "kind": 2, "kubectl": 5}, commands)
}

// The operator's rules equal those of docs/observability/alerts.yaml.
func TestAlerts(t *testing.T) {
	const path = kustomize + "/components/monitoring/alerts.yaml"
	_, groups, ok := bytes.Cut(read(t, root+"/docs/observability/alerts.yaml"), []byte("\ngroups:"))
	require.True(t, ok)
	head, _, ok := strings.Cut(string(read(t, path)), "\n  groups:")
	require.True(t, ok)
	want := head + "\n" + regexp.MustCompile(`(?m)^(.+)$`).ReplaceAllString("groups:"+string(groups), "  $1")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	require.Equal(t, want, string(read(t, path)), "run go test ./tests/deploy -run Alerts -update")
}
