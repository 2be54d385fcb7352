package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page in docs is what the sources say now.
func TestPageIsUpToDate(t *testing.T) {
	root := filepath.Join("..", "..")
	to := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, run(root, to))
	want, err := os.ReadFile(to)
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "server-config.md"))
	require.NoError(t, err)
	require.Equal(t, string(want), string(page), "run: go generate ./server")
}

// No field is left out, and every struct that a field leads to has its chapter.
func TestPageHasEveryField(t *testing.T) {
	page, err := write(filepath.Join("..", ".."))
	require.NoError(t, err)
	parts := strings.Split(string(page), "\n## ")
	all := chapters()
	require.Len(t, parts, len(all)+1)
	told := make(map[reflect.Type]bool)
	for _, c := range all {
		told[reflect.TypeOf(c.value)] = true
	}
	for i, c := range all {
		typ := reflect.TypeOf(c.value)
		for j := range typ.NumField() {
			f := typ.Field(j)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				require.Equal(t, 1, strings.Count(parts[i+1], "\n| `"+name+"` |"), "%v.%s", typ, f.Name)
			}
			if inner := structOf(f.Type); inner != nil {
				require.True(t, told[inner], "%v of %v.%s has no chapter", inner, typ, f.Name)
			}
		}
	}
}

// A struct that cannot be found, or has a field without a comment, is no page.
func TestWhatCannotBeTold(t *testing.T) {
	require.Error(t, run(t.TempDir(), filepath.Join(t.TempDir(), "page.md")))
	type silent struct {
		Field int `json:"field"`
	}
	_, err := commentsOf(filepath.Join("..", ".."), reflect.TypeFor[os.File]())
	require.ErrorContains(t, err, "is not of this module")
	require.Error(t, chapter{"x", silent{}, ""}.write(nil, filepath.Join("..", "..")))
}
