package file

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/target"
)

// A file target that is accepted names one path, and nothing but a path.
func FuzzFileTarget(f *testing.F) {
	for _, s := range []string{
		"warmpath-file:///etc/fleet.yaml", "warmpath-file:fleet.yaml", "warmpath-file:", "warmpath-file:///", "warmpath-file://host/x",
		"warmpath-file:///a%3Fb", "warmpath-file:///a?b", "warmpath-file:a%zz", "warmpath-file:///%00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != target.FileScheme {
			return
		}
		path, err := parsePath(*u)
		if err != nil {
			require.Empty(t, path)
			return
		}
		require.NotContains(t, []string{"", "/"}, path)
		require.Empty(t, u.Host+u.RawQuery+u.Fragment)
	})
}
