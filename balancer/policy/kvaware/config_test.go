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
		{func(c *Config) { c.UncachedWeight = -1 }, "uncached_weight"},
		{func(c *Config) { c.UncachedWeight = math.NaN() }, "uncached_weight"},
		{func(c *Config) { c.QueuedWeight = math.Inf(1) }, "queued_weight"},
		{func(c *Config) { c.DecodeWeight = -0.1 }, "decode_weight"},
		{func(c *Config) { c.GPUCredit = -1 }, "gpu_credit"},
		{func(c *Config) { c.HostCredit = -1 }, "host_credit"},
		{func(c *Config) { c.DiskCredit = -1 }, "disk_credit"},
		{func(c *Config) { c.NearTieTokens = -1 }, "near_tie_tokens"},
		{func(c *Config) { c.ForeignSlack = -0.1 }, "foreign_slack"},
		{func(c *Config) { c.BlockBytes = 0 }, "block_bytes"},
		{func(c *Config) { c.BlockTokens = 65537 }, "block_tokens"},
		{func(c *Config) { c.IndexBytes = 1<<20 - 1 }, "index_bytes"},
		{func(c *Config) { c.KVTokens = -1 }, "kv_tokens"},
	} {
		_, err := New(with(tt.change))
		assert.ErrorContains(t, err, tt.field)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.UncachedWeight, c.QueuedWeight, c.DecodeWeight = 0, 0, 0 },
		func(c *Config) { c.GPUCredit, c.HostCredit, c.DiskCredit = 1.5, 1.2, 0 },
		func(c *Config) { c.NearTieTokens, c.KVTokens = 0, 0 },
	} {
		_, err := New(with(change))
		assert.NoError(t, err)
	}
}

func TestConfigInJSON(t *testing.T) {
	c := DefaultConfig()
	require.NoError(t, json.Unmarshal([]byte(`{"uncached_weight":2,"queued_weight":0.5,"decode_weight":0.1,"gpu_credit":1.1,
		"host_credit":0.5,"disk_credit":0.1,"near_tie_tokens":100,"foreign_slack":0.3,"block_bytes":1,"block_tokens":32,
		"index_bytes":2097152,"kv_tokens":7,"sticky_sessions":true}`), &c))
	assert.Equal(t, Config{2, 0.5, 0.1, 1.1, 0.5, 0.1, 100, 0.3, 1, 32, 2 << 20, 7, true}, c)
}
