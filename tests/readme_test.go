package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer"
	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/tokenize"
	"github.com/warmpath/warmpath/internal/sim/matrix"
	"github.com/warmpath/warmpath/server"
)

// Every block of code in the README and in docs is tried here, by its language:
//
//	go     is type-checked: a program, declarations, or the body of a function. Packages
//	       are imported by their names (packages, below); what else it needs is
//	       declared in front of it: <!-- given: ctx context.Context -->
//	sh     is run, line by line, with addresses on loopback replaced by free ones; see
//	       TestShellInDocs for what may stand there
//	json   must be a config, a service config, or a list of dialects
//	yaml   must be a config, a fleet file, or a look-aside server's config
//
// Indented blocks are figures and formulas.
type fence struct {
	file, lang, given, text string
	line                    int // of the first line of text
}

func (f fence) String() string { return fmt.Sprintf("%s:%d", f.file, f.line) }

// pages are the README and the pages of docs, from the root of the module.
func pages(t *testing.T) []string {
	t.Helper()
	docs, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, docs)
	for i := range docs {
		docs[i] = strings.TrimPrefix(filepath.ToSlash(docs[i]), "../")
	}
	return append([]string{"README.md"}, docs...)
}

// fences returns the blocks of a language; "" = all of them.
func fences(t *testing.T, lang string) (all []fence) {
	t.Helper()
	for _, page := range pages(t) {
		var open *fence
		given := ""
		n := 0
		for line := range strings.Lines(readDoc(t, page)) {
			n++
			bare := strings.TrimSpace(line)
			name, isFence := strings.CutPrefix(bare, "```")
			switch {
			case open != nil && bare == "```":
				if lang == "" || open.lang == lang {
					all = append(all, *open)
				}
				open, given = nil, ""
			case open != nil:
				open.text += line
			case isFence:
				open = &fence{file: page, lang: name, given: given, line: n + 1}
			case strings.HasPrefix(bare, "<!-- given: "):
				given = strings.TrimSuffix(strings.TrimPrefix(bare, "<!-- given: "), " -->")
			case bare != "":
				given = ""
			}
		}
		require.Nil(t, open, "%s: a block that does not end", page)
	}
	return all
}

func TestDocsHaveNoOtherBlocks(t *testing.T) {
	for _, f := range fences(t, "") {
		require.Contains(t, []string{"go", "sh", "json", "yaml"}, f.lang, f)
	}
}

// packages are what blocks of Go import by using their names.
var packages = map[string]string{
	"context":     "context",
	"errors":      "errors",
	"fmt":         "fmt",
	"json":        "encoding/json",
	"log":         "log",
	"strings":     "strings",
	"testing":     "testing",
	"grpc":        "google.golang.org/grpc",
	"credentials": "google.golang.org/grpc/credentials",
	"insecure":    "google.golang.org/grpc/credentials/insecure",
	"client":      module + "/client",
	"dialect":     module + "/balancer/dialect",
	"policy":      module + "/balancer/policy",
	"policytest":  module + "/balancer/policytest",
	"routing":     module + "/balancer/routing",
	"pb":          module + "/tests/ownstubs/vllm/grpc/engine",
	"net":         "net",
	"fleet":       module + "/balancer/fleet",
	"replica":     module + "/server/replica",
}

func TestGoInDocs(t *testing.T) {
	fset := token.NewFileSet()
	load := exporter(t, fset)
	// What one block of a page declares the next ones may use.
	declared := make(map[string]string)
	for _, f := range fences(t, "go") {
		t.Run(f.String(), func(t *testing.T) {
			text := fmt.Sprintf("//line %s:%d\n%s", f.file, f.line, f.text)
			if strings.HasPrefix(f.text, "package ") {
				check(t, fset, load, f, text)
				return
			}
			whole := "package p\n" + declared[f.file] + text
			if _, err := parser.ParseFile(token.NewFileSet(), "", whole, parser.SkipObjectResolution); err == nil {
				check(t, fset, load, f, whole)
				declared[f.file] += text
				return
			}
			check(t, fset, load, f, fmt.Sprintf("package p\n%sfunc _(%s) {\n%s\n}\n", declared[f.file], f.given, text))
		})
	}
}

// check type-checks a file, after the imports it needs are put in. What is
// declared and not used is no fault of a fragment.
func check(t *testing.T, fset *token.FileSet, load types.Importer, f fence, source string) {
	t.Helper()
	file, err := parser.ParseFile(fset, "", source, 0)
	require.NoError(t, err)
	var imports strings.Builder
	for _, id := range file.Unresolved {
		if path := packages[id.Name]; path != "" && !strings.Contains(imports.String(), id.Name+" ") {
			fmt.Fprintf(&imports, "%s %q; ", id.Name, path)
		}
	}
	if len(file.Imports) == 0 && imports.Len() > 0 {
		clause, rest, _ := strings.Cut(source, "\n")
		file, err = parser.ParseFile(fset, "", clause+"; import ("+imports.String()+")\n"+rest, 0)
		require.NoError(t, err)
	}
	config := types.Config{Importer: load, Error: func(err error) {
		if e := err.(types.Error); !e.Soft {
			t.Errorf("%s: %s", fset.Position(e.Pos), e.Msg)
		}
	}}
	_, _ = config.Check("docs", fset, []*ast.File{file}, nil) // its errors were told
}

// exporter imports packages from what the go command has compiled.
func exporter(t *testing.T, fset *token.FileSet) types.Importer {
	t.Helper()
	args := append([]string{"list", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}} {{.Export}}{{end}}"},
		slices.Sorted(maps.Values(packages))...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	require.NoError(t, err)
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, export, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = export
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
}

func TestConfigsInDocs(t *testing.T) {
	for _, f := range append(fences(t, "json"), fences(t, "yaml")...) {
		t.Run(f.String(), func(t *testing.T) {
			var top map[string]json.RawMessage
			_ = json.Unmarshal([]byte(f.text), &top)
			var err error
			switch text := []byte(f.text); {
			case strings.HasPrefix(f.text, "replicas:"):
				_, err = fleet.Parse(text)
			case strings.Contains(f.text, "deployments:"):
				_, err = server.ParseConfig(text)
			case f.lang == "yaml":
				var c *policy.Config
				if c, err = policy.ParseYAML(text); err == nil {
					_, err = dialect.ParseDialects(c.Dialects)
				}
			case strings.HasPrefix(f.text, "["):
				_, err = dialect.ParseDialects(text)
			case top["cells"] != nil:
				_, err = matrix.Read(strings.NewReader(f.text))
			case top["loadBalancingConfig"] != nil:
				err = parseServiceConfig(top["loadBalancingConfig"])
			default:
				var c *policy.Config
				if c, err = policy.ParseConfig(text); err == nil {
					_, err = dialect.ParseDialects(c.Dialects)
					err = errors.Join(err, tokenize.Check(c.Tokenizer))
				}
			}
			require.NoError(t, err)
		})
	}
}

func parseServiceConfig(raw json.RawMessage) error {
	var choices []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &choices); err != nil {
		return err
	}
	if len(choices) == 0 || choices[0][balancer.Name] == nil {
		return fmt.Errorf("the first choice is not %s", balancer.Name)
	}
	_, err := policy.ParseConfig(choices[0][balancer.Name])
	return err
}

var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// absentTrace stands for the reader's own.
const absentTrace = "trace.jsonl"

// A shell block may hold
//
//	go run ./cmd/warmpath …   run as it stands, but a demo without --duration gets 2s. Capacities
//	                          are remembered for the test only
//	… sim --trace trace.jsonl …  run as well, but there is no such file: it must find fault with nothing else
//	go run ./examples/…       run as it stands
//	… &                       either, running until the block ends; the next line begins
//	                          when the address in it answers
//	grpcurl …                 run as it stands, without blanks between quotes. It is built where everything is
//	                          required, else passed over unless it is installed
//	go test ./...             not run: it is what is running
//	go test … -bench …        not run: it must name benchmarks that exist
func TestShellInDocs(t *testing.T) {
	built, cache := make(map[string]string), t.TempDir()
	program := func(pkg string) string {
		if built[pkg] == "" {
			built[pkg] = filepath.Join(t.TempDir(), "program")
			cmd := exec.CommandContext(t.Context(), "go", "build", "-o", built[pkg], pkg)
			cmd.Dir = ".."
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
		}
		return built[pkg]
	}
	for _, f := range fences(t, "sh") {
		free := make(map[string]string)
		lines := strings.Split(strings.TrimSpace(loopback.ReplaceAllStringFunc(f.text, func(addr string) string {
			if free[addr] == "" {
				free[addr] = freeAddr(t)
			}
			return free[addr]
		})), "\n")
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		for _, line := range lines {
			if line == "go test ./..." {
				continue
			}
			words := strings.Fields(line)
			if strings.Contains(line, "-bench") {
				findBenchmarks(t, strings.Fields(strings.ReplaceAll(line, "'", "")))
				continue
			}
			if words[0] == "grpcurl" {
				runGrpcurl(ctx, t, strings.Fields(strings.ReplaceAll(line, "'", ""))[1:])
				continue
			}
			require.GreaterOrEqual(t, len(words), 3, "%s: %s", f, line)
			require.Equal(t, []string{"go", "run"}, words[:2], "%s: %s", f, line)
			args := words[3:]
			background := args[len(args)-1] == "&"
			if background {
				args = args[:len(args)-1]
			}
			if args[0] == "demo" && !strings.Contains(line, "--duration") {
				args = append(args, "--duration", "2s")
			}
			cmd := exec.CommandContext(ctx, program(words[2]), args...)
			cmd.Dir = ".."
			cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+cache)
			if background {
				require.NoError(t, cmd.Start())
				defer func() { stop(); _ = cmd.Wait() }()
				answers(t, loopback.FindString(line))
				continue
			}
			out, err := cmd.CombinedOutput()
			if slices.Contains(args, absentTrace) {
				require.Error(t, err, "%s: %s", f, line)
				require.Contains(t, string(out), "--trace: open "+absentTrace, "%s: %s", f, line)
				continue
			}
			require.NoError(t, err, "%s: %s\n%s", f, line, out)
		}
		stop()
	}
}

// runGrpcurl runs the program of that name.
func runGrpcurl(ctx context.Context, t *testing.T, args []string) {
	t.Helper()
	name, err := exec.LookPath("grpcurl")
	switch {
	case err == nil:
	case os.Getenv("WARMPATH_REQUIRE_ALL") != "":
		name, args = "go", append([]string{"tool", "-modfile=tools/go.mod", "grpcurl"}, args...)
	default:
		t.Logf("not run, grpcurl is not installed: %s", strings.Join(args, " "))
		return
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "grpcurl %s\n%s", strings.Join(args, " "), out)
	require.NotEmpty(t, out)
}

// findBenchmarks checks that each package of a go test command has a benchmark
// that its -bench names.
func findBenchmarks(t *testing.T, words []string) {
	t.Helper()
	if words[0] == "cd" { // a module of its own, which .ci/run tests: nothing here needs its dependencies
		require.FileExists(t, filepath.Join("..", words[1], "go.mod"))
		words = words[3:]
	}
	require.Equal(t, []string{"go", "test"}, words[:2])
	at := slices.Index(words, "-bench")
	require.Greater(t, len(words), at+1)
	pattern, _, _ := strings.Cut(words[at+1], "/")
	for _, pkg := range words[2:slices.Index(words, "-run")] {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-list", pattern, pkg)
		cmd.Dir = ".."
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "Benchmark", "%v: %s", words, pkg)
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	return lis.Addr().String()
}

// answers waits until somebody listens.
func answers(t *testing.T, addr string) {
	t.Helper()
	require.NotEmpty(t, addr)
	eventually(t, addr, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

var (
	links  = regexp.MustCompile(`\]\(([^)\s]*)\)|src="([^"]*)"`)
	titles = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// Links within the repository lead somewhere, every page of docs is in the README,
// and every example on a page.
func TestLinksInDocs(t *testing.T) {
	linked := make(map[string]bool)
	for _, page := range pages(t) {
		for _, m := range links.FindAllStringSubmatch(readDoc(t, page), -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			path = filepath.ToSlash(filepath.Join(filepath.Dir(page), path))
			if target[0] == '#' {
				path = page
			}
			linked[path] = true
			if path == "docs/demo.svg" && os.Getenv("WARMPATH_REQUIRE_ALL") == "" {
				continue // drawn by the demo itself
			}
			_, err := os.Stat(filepath.Join("..", path))
			require.NoError(t, err, "%s: %s", page, target)
			if anchor == "" {
				continue
			}
			var anchors []string
			for _, h := range titles.FindAllStringSubmatch(readDoc(t, path), -1) {
				anchors = append(anchors, strings.ReplaceAll(strings.ToLower(h[1]), " ", "-"))
			}
			require.Contains(t, anchors, anchor, "%s: %s", page, target)
		}
	}
	for _, page := range pages(t)[1:] {
		require.Contains(t, readDoc(t, "README.md"), page)
	}
	examples, err := filepath.Glob("../examples/*/main.go")
	require.NoError(t, err)
	for _, e := range examples {
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(e)), "../")
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(linked)), func(p string) bool {
			return strings.HasPrefix(p, dir+"/")
		}), "%s is on no page", dir)
	}
}
