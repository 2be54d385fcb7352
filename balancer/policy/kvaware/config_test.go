package kvaware

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestBoundsNameTheField(t *testing.T) {
	_, err := New(Config{}.WithDefaults())
	require.NoError(t, err)
	for _, tt := range []struct {
		change func(*Config)
		field  string
	}{
		{func(c *Config) { c.NearTieTokens = -2 }, "near_tie_tokens"},
		{func(c *Config) { c.NearTieTokens = policy.Limit(math.NaN()) }, "near_tie_tokens"},
		{func(c *Config) { c.BlockTokens = 65537 }, "block_tokens"},
		{func(c *Config) { c.IndexBytes = 1<<20 - 1 }, "index_bytes"},
		{func(c *Config) { c.KVTokens = -2 }, "kv_tokens"},
	} {
		_, err := New(with(tt.change))
		assert.ErrorContains(t, err, tt.field)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.NearTieTokens, c.KVTokens = policy.Off, policy.Off },
	} {
		_, err := New(with(change))
		assert.NoError(t, err)
	}
}

func TestConfigInJSON(t *testing.T) {
	c := Config{}.WithDefaults()
	require.NoError(t, json.Unmarshal([]byte(`{"near_tie_tokens":100,"block_tokens":32,
		"index_bytes":2097152,"kv_tokens":7,"sticky_sessions":true}`), &c))
	assert.Equal(t, Config{100, 32, 2 << 20, 7, true}, c)
}
