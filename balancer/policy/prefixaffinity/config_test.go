package prefixaffinity

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestDefaultsAreValid(t *testing.T) {
	_, err := New(Config{}.WithDefaults())
	require.NoError(t, err)
}

func TestBoundsNameTheField(t *testing.T) {
	for _, tt := range []struct {
		change func(*Config)
		field  string
	}{
		{func(c *Config) { c.MatchRateThreshold = -0.1 }, "match_rate_threshold"},
		{func(c *Config) { c.MatchRateThreshold = 1.1 }, "match_rate_threshold"},
		{func(c *Config) { c.MatchRateThreshold = policy.Limit(math.NaN()) }, "match_rate_threshold"},
		{func(c *Config) { c.BlockTokens = -1 }, "block_tokens"},
		{func(c *Config) { c.BlockTokens = 65537 }, "block_tokens"},
		{func(c *Config) { c.IndexBytes = 1<<20 - 1 }, "index_bytes"},
		{func(c *Config) { c.OnMiss = "random" }, "on_miss"},
		{func(c *Config) { c.ImbalancedThreshold = -2 }, "imbalanced_threshold"},
	} {
		_, err := New(with(tt.change))
		assert.ErrorContains(t, err, tt.field)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.MatchRateThreshold = policy.Off },
		func(c *Config) { c.MatchRateThreshold = 1 },
		func(c *Config) { c.BlockTokens, c.OnMiss = 1, OnMissSmallest },
		func(c *Config) { c.BlockTokens = 65536 },
		func(c *Config) { c.ImbalancedThreshold = 0.5 },
	} {
		_, err := New(with(change))
		assert.NoError(t, err)
	}
}

func TestConfigInJSON(t *testing.T) {
	c := Config{}.WithDefaults()
	require.NoError(t, json.Unmarshal([]byte(`{"match_rate_threshold":0.2,"block_tokens":32,"index_bytes":2097152,
		"on_miss":"smallest","imbalanced_threshold":3}`), &c))
	assert.Equal(t, Config{0.2, 32, 2 << 20, OnMissSmallest, 3}, c)
}
