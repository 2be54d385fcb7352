package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// outside writes a program into a module that is not in this repository, and builds it.
func outside(t *testing.T, program string) (file string, output []byte, err error) {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	text := strings.Replace(string(mod), "module "+module, "module example.com/outside", 1) +
		"\nrequire " + module + " v0.0.0\nreplace " + module + " => " + root + "\n"
	sum, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	for name, content := range map[string]string{"go.mod": text, "go.sum": string(sum), "main.go": program} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	file = filepath.Join(dir, "outside")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off")
	output, err = cmd.CombinedOutput()
	return file, output, err
}

// A module outside cannot change what the Router keeps with a request, a replica or a decision: there is no way to it
// that compiles.
func TestReservationsAreSealed(t *testing.T) {
	for name, tt := range map[string]struct{ imports, body, refused string }{
		"request":   {"", "_ = q.State()", "q.State undefined"},
		"replica":   {"", "r.State().Book.Add(1)", "r.State undefined"},
		"decision":  {"", "_ = d.State()", "d.State undefined"},
		"field":     {"", "r.state.Book.Add(1)", "cannot refer to unexported field state"},
		"fields":    {"", "q.state.Tried, d.state.Probe = nil, true", "cannot refer to unexported field state"},
		"literal":   {"", "_ = policy.Replica{state: nil}", "cannot refer to unexported field state"},
		"new":       {"", "_ = policy.NewReplica", "undefined: policy.NewReplica"},
		"part":      {`"` + module + `/internal/router/part"`, "part.OfReplica(r).Book.Add(1)", "use of internal package"},
		"state":     {`"` + module + `/internal/router/state"`, "_ = state.Access", "use of internal package"},
		"router":    {`"` + module + `/internal/router"`, "_ = router.NewRouter", "use of internal package"},
		"interface": {"", "_ = any(r).(interface{ State() any }); _ = r.State", "r.State undefined"},
	} {
		t.Run(name, func(t *testing.T) {
			_, output, err := outside(t, "package main\nimport (\""+module+"/balancer/policy\"\n"+tt.imports+"\n)\n"+
				"func try(q *policy.Request, r *policy.Replica, d *policy.Decision) {\n"+tt.body+"\n}\n"+
				"func main() { try(nil, nil, nil) }\n")
			require.Error(t, err)
			require.Contains(t, string(output), tt.refused)
		})
	}
}

// A module outside writes a policy that does all that the built-in ones do, and calls go where it says.
func TestPolicyOfAnotherModule(t *testing.T) {
	program, output, err := outside(t, `package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"`+module+`/balancer/policy"
	"`+module+`/client"
)

type prepared struct{ session string }

var completed = make(chan string, 1)

func main() {
	policy.Register("outside", func(struct{}) (policy.Policy, error) {
		return policy.Policy{
			Uses: policy.UsesSession | policy.UsesLoad,
			Prepare: func(_ context.Context, q *policy.Request, v policy.View) error {
				p, _ := q.Spare().(*prepared)
				if p == nil {
					p = new(prepared)
				}
				p.session = q.Session
				q.Prepared = p
				return nil
			},
			Choose: func(q *policy.Request, v policy.View) policy.Decision {
				for _, r := range v.Connected() {
					peers, _ := r.PeerLoad()
					if v.Available(q, r) && !q.Tried(r) && r.Ongoing()+peers == 0 && r.HomeWeight() == 0 {
						d := policy.To(r, "outside")
						d.Home, d.ExpectedTokens = new(policy.Replica), q.PromptTokens // a home that is in no fleet does no harm
						return d
					}
				}
				return policy.Wait()
			},
			Observer: policy.Observer{Completed: func(q *policy.Request, d policy.Decision, o policy.Outcome) {
				completed <- fmt.Sprint(q.Prepared.(*prepared).session, " ", d.Reason, " ", o.Fault == policy.NoFault)
			}},
		}, nil
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go server.Serve(lis)
	defer server.Stop()
	conn, err := client.New("warmpath:///"+lis.Addr().String(), client.WithConfig(`+"`"+`{"policy": {"outside": {}}}`+"`"+`),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer conn.Close()
	var d client.Decision
	ctx := client.WithSession(client.WithDecision(context.Background(), &d), "anna")
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	check(err)
	fmt.Println(<-completed, d.Reason, d.Replica == lis.Addr().String())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
`)
	require.NoError(t, err, "%s", output)
	output, err = exec.CommandContext(t.Context(), program).Output()
	require.NoError(t, err, "%s", output)
	require.Equal(t, "anna outside true outside true\n", string(output))
}

// Public packages define their types: none is another name of an internal one, of which go doc prints nothing.
func TestPublicTypesAreDefined(t *testing.T) {
	types := 0
	for _, dir := range publicDirs(t) {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			internal := internalImports(t, f)
			ast.Inspect(f, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok || !spec.Name.IsExported() {
					return true
				}
				types++
				of, ok := spec.Type.(*ast.SelectorExpr)
				require.False(t, ok && internal[of.X.(*ast.Ident).Name], "%s: %s is a type of an internal package", file, spec.Name)
				return true
			})
		}
	}
	require.Greater(t, types, 50)
}

// internalImports returns the names by which a file uses the internal packages that it imports.
func internalImports(t *testing.T, f *ast.File) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = strings.Contains(path, "/internal/")
	}
	return names
}
