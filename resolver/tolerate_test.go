package resolver

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTolerate(t *testing.T) {
	for given, want := range map[string]struct {
		reduced string
		ignored string
	}{
		`{"loadBalancingConfig":[{"warmpath":{"mode":"central"}}]}`: {`{"loadBalancingConfig":[{"warmpath":{"mode":"central"}}]}`, ""},
		`{"methodConfig":[],"loadBalancingConfig":[{"warmpath":{"mode":"x","new":[1],"zone":"z","ejection":{"failures":3,"y":2}}},{"round_robin":{}}]}`: {
			`{"methodConfig":[],"loadBalancingConfig":[{"warmpath":{"zone":"z","ejection":{"failures":3}}},{"round_robin":{}}]}`,
			"new",
		},
		`{"loadBalancingConfig":[{"warmpath":{"ejection":{"failures":3,"later":1},"policy":{"round_robin":{"new":1}}}}]}`: {
			`{"loadBalancingConfig":[{"warmpath":{"ejection":{"failures":3},"policy":{"round_robin":{"new":1}}}}]}`, "later",
		},
		`{"loadBalancingConfig":[{"warmpath":{"mode":"x","zone":"z"}}]}`: {`{"loadBalancingConfig":[{"warmpath":{"zone":"z"}}]}`, "mode"},
		`{"loadBalancingConfig":[{"round_robin":{}}]}`:                   {`{"loadBalancingConfig":[{"round_robin":{}}]}`, ""},
		`{"loadBalancingConfig":[{"warmpath":5}]}`:                       {`{"loadBalancingConfig":[{"warmpath":5}]}`, ""},
		`no config`: {`no config`, ""},
	} {
		reduced, ignored := tolerate(given)
		if want.ignored == "" {
			require.NoError(t, ignored)
		} else {
			require.ErrorContains(t, ignored, want.ignored)
		}
		if json.Valid([]byte(want.reduced)) {
			require.JSONEq(t, want.reduced, reduced)
		} else {
			require.Equal(t, want.reduced, reduced)
		}
	}
}

// Whatever a server pushes, the rest is as valid a config as before, and has nothing left to remove.
func FuzzTolerate(f *testing.F) {
	f.Add(`{"loadBalancingConfig":[{"warmpath":{"mode":"x","ejection":{"y":2}}},{"round_robin":{}}]}`)
	f.Add(`{"loadBalancingConfig":[{"warmpath":{"ejection":null,"mode":null}}]}`)
	f.Add(`{"loadBalancingConfig":{}}`)
	f.Fuzz(func(t *testing.T, config string) {
		reduced, ignored := tolerate(config)
		if ignored == nil {
			require.Equal(t, config, reduced)
			return
		}
		require.True(t, json.Valid([]byte(reduced)))
		again, more := tolerate(reduced)
		require.NoError(t, more)
		require.Equal(t, reduced, again)
	})
}
