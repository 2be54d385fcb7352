package policy_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// A config that is accepted as YAML is the same when it is written as JSON, and can be served.
func FuzzParseYAML(f *testing.F) {
	for _, s := range []string{
		"", "policy: {consistent_hash: {num_fallback_replicas: 1}}", "max_ongoing_requests: 64\nsession_keys: [a, b]\n", "policy:\n  kv_aware:\n",
		"prepare_timeout: 1.5s", "&a {policy: *a}", "---\n{}\n---\n{}", "max_attempts: 0x3", "policy: {round_robin: {}, round_robin: {}}", "zone: !!binary aGk=",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := policy.ParseYAML(data)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.Equal(t, *c, c.WithDefaults(), "nothing is left to default")
		text, err := json.Marshal(c)
		require.NoError(t, err)
		round, err := policy.ParseConfig(text)
		require.NoErrorf(t, err, "%s", text)
		again, err := json.Marshal(round)
		require.NoError(t, err)
		require.JSONEq(t, string(text), string(again))
		r, err := router.FromConfig(c, nil)
		require.NoError(t, err)
		require.NoError(t, r.Close())
	})
}
