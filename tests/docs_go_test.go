package tests

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packages are what blocks of Go import by using their names.
var packages = map[string]string{
	"context":        "context",
	"errors":         "errors",
	"fmt":            "fmt",
	"json":           "encoding/json",
	"log":            "log",
	"strings":        "strings",
	"testing":        "testing",
	"grpc":           "google.golang.org/grpc",
	"credentials":    "google.golang.org/grpc/credentials",
	"insecure":       "google.golang.org/grpc/credentials/insecure",
	"client":         module + "/client",
	"dialect":        module + "/balancer/dialect",
	"policy":         module + "/balancer/policy",
	"consistenthash": module + "/balancer/policy/consistenthash",
	"policytest":     module + "/balancer/policytest",
	"routing":        module + "/internal/router",
	"pb":             module + "/examples/stubs/vllm/grpc/engine",
	"net":            "net",
	"replica":        module + "/server/replica",
}

func TestGoInDocs(t *testing.T) {
	fset := token.NewFileSet()
	load := exporter(t, fset)
	// Later blocks of a page may use the declarations of earlier ones.
	declared := make(map[string]string)
	for _, f := range fences(t, "go") {
		t.Run(f.String(), func(t *testing.T) {
			text := fmt.Sprintf("//line %s:%d\n%s", f.file, f.line, f.text)
			if strings.HasPrefix(f.text, "package ") {
				check(t, fset, load, text)
				return
			}
			whole := "package p\n" + declared[f.file] + text
			if _, err := parser.ParseFile(token.NewFileSet(), "", whole, parser.SkipObjectResolution); err == nil {
				check(t, fset, load, whole)
				declared[f.file] += text
				return
			}
			check(t, fset, load, fmt.Sprintf("package p\n%sfunc _(%s) {\n%s\n}\n", declared[f.file], f.given, text))
		})
	}
}

// check type-checks a file after it adds the imports that the file needs. A fragment may leave a declaration unused.
func check(t *testing.T, fset *token.FileSet, load types.Importer, source string) {
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
	_, _ = config.Check("docs", fset, []*ast.File{file}, nil) // Config.Error reports the errors
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
