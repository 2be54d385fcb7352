package kvaware

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBoundsNameTheField(t *testing.T) {
	_, err := New(DefaultConfig())
	require.NoError(t, err)
	for _, tt := range []struct {
		change func(*Config)
		field  string
	}{
		{func(c *Config) { c.NearTieTokens = -1 }, "near_tie_tokens"},
		{func(c *Config) { c.NearTieTokens = math.NaN() }, "near_tie_tokens"},
		{func(c *Config) { c.BlockBytes = 0 }, "block_bytes"},
		{func(c *Config) { c.BlockTokens = 65537 }, "block_tokens"},
		{func(c *Config) { c.IndexBytes = 1<<20 - 1 }, "index_bytes"},
		{func(c *Config) { c.KVTokens = -1 }, "kv_tokens"},
	} {
		_, err := New(with(tt.change))
		assert.ErrorContains(t, err, tt.field)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.NearTieTokens, c.KVTokens = 0, 0 },
	} {
		_, err := New(with(change))
		assert.NoError(t, err)
	}
}

func TestConfigInJSON(t *testing.T) {
	c := DefaultConfig()
	require.NoError(t, json.Unmarshal([]byte(`{"near_tie_tokens":100,"block_bytes":1,"block_tokens":32,
		"index_bytes":2097152,"kv_tokens":7,"sticky_sessions":true}`), &c))
	assert.Equal(t, Config{100, 1, 32, 2 << 20, 7, true}, c)
}
