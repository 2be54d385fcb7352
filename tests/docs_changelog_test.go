package tests

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every name in the changelog exists: as a path, or in the code, a proto or a manifest.
func TestChangelogNamesExist(t *testing.T) {
	text, err := os.ReadFile("../CHANGELOG.md")
	require.NoError(t, err)
	names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(names), 30)
	for _, n := range names {
		name, _, _ := strings.Cut(n[1], "host:port")
		if _, err := os.Stat("../" + name); err == nil {
			continue
		}
		for _, word := range strings.Fields(name) {
			word = strings.TrimPrefix(word, "client.")
			if exec.Command("git", "-C", "..", "grep", "-qwF", "-e", word, "--", "*.go", "*.proto", "*.yaml").Run() != nil {
				t.Errorf("%s: nothing has the name %s", n[0], word)
			}
		}
	}
}
