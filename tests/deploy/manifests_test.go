// Package deploy tries what is in deploy, and the Dockerfile: as a user does, with Kustomize and a real API server.
package deploy

import (
	"bytes"
	"debug/elf"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/internal/lab/apiserver"
)

const (
	root      = "../.."
	kustomize = root + "/deploy/kustomize"
)

var update = flag.Bool("update", false, "write the Prometheus rules of deploy anew")

// An object is one of Kubernetes.
type object map[string]any

// at returns what is at a path of keys, or nil.
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

// kustomizations are those that a user applies, by the names of their folders.
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

var program string // that build has built

// build builds the command as the Dockerfile does, from the files that its build gets.
func build(t *testing.T) string {
	t.Helper()
	if program != "" {
		return program
	}
	list := exec.Command("git", "ls-files", "-co", "--exclude-standard")
	list.Dir = root
	files, err := list.Output()
	require.NoError(t, err)
	ignored := strings.Fields(string(read(t, root+"/.dockerignore")))
	require.Equal(t, []string{".git", "**/*_test.go"}, ignored)
	source := t.TempDir()
	for name := range strings.Lines(string(files)) {
		name = strings.TrimSpace(name)
		raw, err := os.ReadFile(filepath.Join(root, name))
		if strings.HasSuffix(name, "_test.go") || os.IsNotExist(err) { // deleted, not committed yet
			continue
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(source, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(source, name), raw, 0o600))
	}
	lines := regexp.MustCompile(`(?m)^RUN (.*)$`).FindAllStringSubmatch(string(read(t, root+"/Dockerfile")), -1)
	require.Len(t, lines, 1)
	dir, err := os.MkdirTemp("", "warmpath-deploy-") // TestMain removes it
	require.NoError(t, err)
	out := filepath.Join(dir, "warmpath")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(lines[0][1], "-o /warmpath", "-o "+out))
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOWORK=", "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	program = out
	return out
}

func TestMain(m *testing.M) {
	code := apiserver.Main{M: m}.Run()
	if program != "" {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

// The image's base has no C library: the program must not need one.
func TestProgramIsStatic(t *testing.T) {
	path := build(t)
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type)
	}
	said, err := exec.CommandContext(t.Context(), path, "version").CombinedOutput()
	require.NoError(t, err, "%s", said)
	stages := regexp.MustCompile(`(?m)^FROM .*golang:([0-9.]+)`).FindStringSubmatch(string(read(t, root+"/Dockerfile")))
	require.Len(t, stages, 2)
	require.Contains(t, string(read(t, root+"/go.mod")), "\ngo "+stages[1]+".", "the image's Go is the module's")
	step := regexp.MustCompile(`-o (\S+) .*\n\n.*\nCOPY --from=build (\S+) (\S+)\nENTRYPOINT \["(\S+)"\]\n`).FindStringSubmatch(string(read(t, root+"/Dockerfile")))
	require.Equal(t, []string{"/warmpath", "/warmpath", "/warmpath", "/warmpath"}, step[1:], "built, copied from, to, started")
}

// What the Deployments mount is a config that their command accepts, on the ports that the manifests name.
func TestConfigsAreAccepted(t *testing.T) {
	path, checked := build(t), 0
	for _, name := range kustomizations(t) {
		for _, o := range render(t, name) {
			if o.String() != "ConfigMap/warmpath" {
				continue
			}
			config := write(t, "warmpath.yaml", o.text("data", "warmpath.yaml"))
			said, err := exec.CommandContext(t.Context(), path, "serve", "--check", "--config", config).CombinedOutput()
			require.NoError(t, err, "%s: %s", name, said)
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

// The commands of the page name what there is; TestServerFollowsItsService runs the command's own.
func TestPage(t *testing.T) {
	_, block, ok := strings.Cut(page(t), "```sh\n")
	require.True(t, ok)
	block, _, _ = strings.Cut(block, "```")
	all := render(t, "quickstart")
	commands := map[string]int{}
	for line := range strings.Lines(block) {
		line = strings.TrimSpace(line)
		switch words := strings.Fields(line); {
		case strings.HasPrefix(line, "docker build -t "), strings.HasPrefix(line, "kind load docker-image "):
			image := strings.TrimSuffix(strings.Join(words[3:], " "), " .")
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
	require.Equal(t, map[string]int{"docker": 1, "kind": 2, "kubectl": 5}, commands)
}

// The operator's rules are those of docs/observability/alerts.yaml.
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
