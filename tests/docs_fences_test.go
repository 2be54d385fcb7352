package tests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// This file and its neighbours test every code block of the README and of docs, by its language:
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

var (
	links  = regexp.MustCompile(`\]\(([^)\s]*)\)|src="([^"]*)"`)
	titles = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// Links within the repository are not broken. Every page of docs is in the README, and every example is on a page.
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
