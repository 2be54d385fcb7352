package enginesim

import (
	"cmp"
	"fmt"
)

// Config describes an engine. The zero value is an h100-14b.
type Config struct {
	// Preset names one of Presets; empty means h100-14b.
	Preset string
	// KVTokens is the size of the KV cache in tokens, rounded down to whole blocks; 0 means the preset's.
	// The mocker preset has none and needs it.
	KVTokens int
	// BlockSize is the tokens in a block; 0 means 16.
	BlockSize int
	// MaxBatchedTokens is the token budget of a pass; 0 means 8192, that of large GPUs (2048 on others).
	MaxBatchedTokens int
	// MaxSequences is how many sequences run at once; 0 means 1024, as on large GPUs (256 on others).
	MaxSequences int
	// MaxModelLen bounds prompt and output together; 0 means as much as the KV cache holds.
	MaxModelLen int
	// Listener receives stored and removed blocks; nil = none.
	Listener Listener
}

// resolve checks the config and fills in defaults.
func (c Config) resolve() (Config, Preset, error) {
	p, err := FindPreset(c.Preset)
	if err != nil {
		return c, p, err
	}
	c.Preset = p.Name
	for _, f := range []struct {
		name  string
		value *int
		unset int
		most  int
	}{
		{"KVTokens", &c.KVTokens, p.KVTokens, 1 << 31},
		{"BlockSize", &c.BlockSize, 16, 1 << 16},
		{"MaxBatchedTokens", &c.MaxBatchedTokens, 8192, 1 << 24},
		{"MaxSequences", &c.MaxSequences, 1024, 1 << 24},
	} {
		if *f.value = cmp.Or(*f.value, f.unset); *f.value < 0 || *f.value > f.most {
			return c, p, fmt.Errorf("enginesim: %s %d is not in 1..%d", f.name, *f.value, f.most)
		}
	}
	if c.KVTokens == 0 {
		return c, p, fmt.Errorf("enginesim: preset %s has no KV cache of its own: KVTokens is required", p.Name)
	}
	if c.KVTokens < c.BlockSize {
		return c, p, fmt.Errorf("enginesim: KVTokens %d is less than a block of %d", c.KVTokens, c.BlockSize)
	}
	c.KVTokens -= c.KVTokens % c.BlockSize
	if c.MaxModelLen < 0 {
		return c, p, fmt.Errorf("enginesim: MaxModelLen %d is negative", c.MaxModelLen)
	}
	if c.MaxModelLen == 0 || c.MaxModelLen > c.KVTokens {
		c.MaxModelLen = c.KVTokens
	}
	return c, p, nil
}
