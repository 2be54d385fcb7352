package cacheview

import "fmt"

// Bounds of what the policies with an index are configured with.
const (
	maxBlockTokens = 1 << 16
	minIndexBytes  = 1 << 20
)

// CheckSizes checks the blocks that prompts are cut in and the budget of an index. The error names the field.
func CheckSizes(blockTokens int, indexBytes int64) error {
	if blockTokens < 1 || blockTokens > maxBlockTokens {
		return fmt.Errorf("block_tokens: it is %d, want 1 to %d", blockTokens, maxBlockTokens)
	}
	if indexBytes < minIndexBytes {
		return fmt.Errorf("index_bytes: it is %d, want at least %d", indexBytes, minIndexBytes)
	}
	return nil
}
