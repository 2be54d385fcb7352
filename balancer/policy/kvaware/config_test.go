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
		{func(c *Config) { c.BlockTokens = 65537 }, "block_tokens"},
		{func(c *Config) { c.IndexBytes = 1<<20 - 1 }, "index_bytes"},
		{func(c *Config) { c.KVTokens = -2 }, "kv_tokens"},
		{func(c *Config) { c.KVTokens = policy.Limit(math.NaN()) }, "kv_tokens"},
	} {
		_, err := New(with(tt.change))
		assert.ErrorContains(t, err, tt.field)
	}
	_, err = New(with(func(c *Config) { c.KVTokens = policy.Off }))
	assert.NoError(t, err)
}

func TestConfigInJSON(t *testing.T) {
	c := Config{}.WithDefaults()
	require.NoError(t, json.Unmarshal([]byte(`{"block_tokens":32,"index_bytes":2097152,"kv_tokens":7}`), &c))
	assert.Equal(t, Config{32, 2 << 20, 7}, c)
}
