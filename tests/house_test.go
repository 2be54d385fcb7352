package tests

import (
	"encoding/json"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// house lists the rooms from the top down. A package may import its own room and the rooms below. An entry that ends
// in /* has only the packages below that folder.
var house = []string{
	"cmd/warmpath",
	"tests",
	"examples",
	"lab/sim",
	"lab/report",
	"lab/chaos",
	"lab/drive",
	"lab/faultproxy",
	"lab/enginesim",
	"lab/workload",
	"tokenizers",
	"client",
	"resolver",
	"internal/balancer",
	"server/nats",
	"server/replica",
	"server",
	"internal/loadpoll",
	"internal/httpendpoint",
	"internal/page",
	"internal/endpoint",
	"internal/call",
	"internal/loadprobe",
	"internal/lookaside",
	"internal/telemetry",
	"internal/tokenize",
	"internal/builtin",
	"internal/homeweights",
	"balancer/policytest",
	"internal/routertest",
	"internal/router",
	"balancer/policy/*",
	"internal/cacheview",
	"internal/rendezvous",
	"internal/cluster",
	"internal/sharedstore",
	"internal/requestkey",
	"balancer/dialect",
	"balancer/kvevents",
	"internal/kvevents",
	"internal/target",
	"internal/fleetfile",
	"internal/admission",
	"internal/fleet",
	"internal/eventsource",
	"internal/kvindex",
	"internal/fault",
	"internal/health",
	"internal/pemfile",
	"internal/outlier",
	"internal/protofield",
	"internal/router/part",
	"balancer/policy",
	"internal/strict",
	"internal/apiserver",
	"internal/freeport",
	"internal/pause",
	"internal/race",
	"internal/router/state",
	"proto/warmpath/v1",
}

const module = "github.com/warmpath/warmpath"

type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// room returns the index of a package's room: the longest entry that matches.
func room(pkg string) int {
	rel := strings.TrimPrefix(pkg, module+"/")
	best, length := -1, -1
	for i, r := range house {
		prefix, all := strings.CutSuffix(r, "/*")
		in := rel == r || strings.HasPrefix(rel, r+"/")
		if all {
			in = strings.HasPrefix(rel, prefix+"/")
		}
		if in && len(r) > length {
			best, length = i, len(r)
		}
	}
	return best
}

func TestImportsPointDown(t *testing.T) {
	packages := list(t)
	if len(packages) < 10 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	for _, p := range packages {
		from := room(p.ImportPath)
		if from < 0 {
			t.Errorf("%s has no room in the house", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module+"/") {
				continue
			}
			if to := room(imp); to < from {
				t.Errorf("%s imports %s, which is in a room above", p.ImportPath, imp)
			}
		}
	}
}

// The core imports no gRPC, HTTP, protobuf or network package.
func TestCoreImportsNoNetwork(t *testing.T) {
	core := []string{"internal/router", "internal/cacheview", "internal/kvindex", "internal/rendezvous", "balancer/policy/"}
	foreign := []string{"google.golang.org/grpc", "google.golang.org/protobuf", "net", "net/http", "net/url"}
	for _, p := range list(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		in := false
		for _, c := range core {
			in = in || strings.HasPrefix(rel, c) || rel == path.Clean(c)
		}
		if !in {
			continue
		}
		for _, imp := range p.Imports {
			for _, f := range foreign {
				if imp == f || strings.HasPrefix(imp, f+"/") {
					t.Errorf("%s imports %s", p.ImportPath, imp)
				}
			}
		}
	}
}

// The policies of this repository have what any other author of a policy has: nothing of the Router.
func TestPoliciesUseThePublicSurface(t *testing.T) {
	seen := 0
	for _, p := range list(t) {
		if !strings.HasPrefix(p.ImportPath, module+"/balancer/policy/") {
			continue
		}
		seen++
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module+"/internal/router") {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
	if seen < 5 {
		t.Fatalf("go list found %d policies", seen)
	}
}

// What measures is a module of its own: nothing that a user links requires it, and no test of the root does.
func TestRootRequiresNoLab(t *testing.T) {
	for _, p := range list(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.ContainsFunc([]string{"lab", "cmd/warmpath", "tests"}, func(m string) bool { return rel == m || strings.HasPrefix(rel, m+"/") }) {
			continue
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if strings.HasPrefix(imp, module+"/lab/") {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}
