package tests

import (
	"bytes"
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateAPI = flag.Bool("update-api", false, "write testdata/api.txt anew")

// The exported API equals testdata/api.txt. To change it on purpose run: go test ./tests -run TestAPI -update-api.
func TestAPI(t *testing.T) {
	var b bytes.Buffer
	for _, dir := range publicDirs(t) {
		writeAPI(t, &b, dir)
	}
	const snapshot = "testdata/api.txt"
	if *updateAPI {
		require.NoError(t, os.WriteFile(snapshot, b.Bytes(), 0o644))
	}
	want, err := os.ReadFile(snapshot)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "the exported API has changed: if that is the purpose, run go test ./tests -run TestAPI -update-api")
}

// publicDirs are the directories of the packages that others can import.
func publicDirs(t *testing.T) (dirs []string) {
	programs := regexp.MustCompile(`^(cmd|examples|lab|tests|proto)\b|(^|/)internal/`)
	for _, p := range list(t) {
		if rel := strings.TrimPrefix(p.ImportPath, module+"/"); !programs.MatchString(rel) {
			dirs = append(dirs, rel)
		}
	}
	return dirs
}

// writeAPI writes the exported declarations of a package, without comments and bodies.
func writeAPI(t *testing.T, b *bytes.Buffer, dir string) {
	fset := token.NewFileSet()
	files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
	require.NoError(t, err)
	var parsed []*ast.File
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		parsed = append(parsed, f)
	}
	p, err := doc.NewFromFiles(fset, parsed, module+"/"+dir)
	require.NoError(t, err)
	show := func(decl ast.Node) {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			require.NoError(t, printer.Fprint(b, fset, decl))
			b.WriteString("\n")
			return
		}
		f.Doc, f.Body = nil, nil
		var text strings.Builder
		require.NoError(t, printer.Fprint(&text, fset, f))
		line := strings.Join(strings.Fields(text.String()), " ") // however it is wrapped
		b.WriteString(strings.NewReplacer("( ", "(", ", )", ")").Replace(line) + "\n")
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			show(v.Decl)
		}
	}
	funcs := func(all []*doc.Func) {
		for _, f := range all {
			show(f.Decl)
		}
	}
	b.WriteString("\n== " + dir + "\n")
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, typ := range p.Types {
		show(typ.Decl)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		funcs(typ.Methods)
	}
}
