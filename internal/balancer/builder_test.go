package balancer

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The policies above this one under xDS write its parsed config as text and
// parse it again.
func TestConfigSurvivesText(t *testing.T) {
	for _, object := range []string{
		`{}`,
		`{"policy":{"consistent_hash":{"num_fallback_replicas":1}},"session_keys":[],"max_queued_requests":"off"}`,
		`{"dialects":[{"methods":["/a.B/C"],"prompt":"3.2"}],"prepare_timeout":"1s","node":"n","zone":"z"}`,
	} {
		first, err := parseConfig(json.RawMessage(object))
		require.NoError(t, err)
		text, err := json.Marshal(first)
		require.NoError(t, err)
		second, err := parseConfig(text)
		require.NoError(t, err)
		require.Equal(t, first.key, second.key)
		require.Equal(t, first.sessions, second.sessions)
	}
}

// Each error is named once.
func TestCheck(t *testing.T) {
	for object, want := range map[string]string{
		`{}`:                               "",
		`{"dialects":{}}`:                  "warmpath: dialects: it is an object, not a list",
		`{"dialects":[{"methods":["a"]}]}`: "warmpath: dialects[0] (a): methods: ",
		`{"load_poll":"x"}`:                `warmpath: load_poll: "x" is none of [grpc:openengine `,
		`{"kv_events":"foo"}`:              `warmpath: kv_events: "foo": `,
		`{"policy":{"kv_aware":{"kv_tokens":-1}}}`: "warmpath: config: policy.kv_aware: kv_tokens: it is a number -1",
	} {
		err := Check(object)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.Error(t, err)
		require.True(t, strings.HasPrefix(err.Error(), want), "%v", err)
	}
}
