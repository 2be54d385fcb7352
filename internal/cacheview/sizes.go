package cacheview

import "fmt"

// Bounds of what the policies with an index are configured with.
const (
	maxCut        = 1 << 16
	minIndexBytes = 1 << 20
)

// CheckSizes checks the blocks that prompts are cut in and the budget of an index. The error names the field.
func CheckSizes(blockBytes, blockTokens int, indexBytes int64) error {
	for _, f := range []struct {
		name  string
		value int
	}{{"block_bytes", blockBytes}, {"block_tokens", blockTokens}} {
		if f.value < 1 || f.value > maxCut {
			return fmt.Errorf("%s: it is %d, want 1 to %d", f.name, f.value, maxCut)
		}
	}
	if indexBytes < minIndexBytes {
		return fmt.Errorf("index_bytes: it is %d, want at least %d", indexBytes, minIndexBytes)
	}
	return nil
}
