package kvindex

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/internal/race"
)

func oneToTwelve() []uint32 { return []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} }

func TestLocalHashesAreDynamos(t *testing.T) {
	tokens := oneToTwelve()
	for i, want := range []uint64{14643705804678351452, 16777012769546811212, 483935686894639516} {
		assert.Equal(t, []uint64{want}, AppendTokens(nil, tokens[4*i:4*i+4], 4, SeedFor("", "", "")))
	}
}

func TestChainedVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			assert.Equal(t, v.tokens, AppendTokens(nil, oneToTwelve(), 4, v.seed))
			assert.Equal(t, v.tokens, appendBytes(nil, encoded(oneToTwelve()), 16, v.seed))
			assert.Equal(t, v.text, AppendText(nil, "the quick brown fox", 8, v.seed))
		})
	}
}

func TestSeeds(t *testing.T) {
	assert.Equal(t, vectors[1].seed, SeedFor("", "my-lora", ""))
	assert.Equal(t, vectors[2].seed, SeedFor("", "", "tenant-7"))
	assert.Equal(t, vectors[3].seed, SeedFor("llama", "my-lora", "tenant-7"))
	assert.Equal(t, Seed(1337), SeedFor("", "", ""))
	assert.Equal(t, Seed(1337+xxh3.HashString("a")), SeedFor("", "a", ""))
	seeds := map[Seed]bool{}
	for _, names := range [][3]string{{}, {"x"}, {"", "x"}, {"", "", "x"}, {"x", "x"}, {"x", "", "x"}, {"", "x", "x"}, {"x", "x", "x"}} {
		seeds[SeedFor(names[0], names[1], names[2])] = true
	}
	assert.Len(t, seeds, 8)
}

// Engines have blocks of 1 to 256 tokens.
func TestAllBlockSizes(t *testing.T) {
	tokens := make([]uint32, 3*256+5)
	for i := range tokens {
		tokens[i] = uint32(i * i)
	}
	for size := 1; size <= 256; size++ {
		hashes := AppendTokens(nil, tokens, size, chainSeed)
		require.Len(t, hashes, len(tokens)/size)
		require.Equal(t, appendBytes(nil, encoded(tokens), 4*size, chainSeed), hashes)
	}
}

func TestOnlyFullBlocksAreHashed(t *testing.T) {
	tokens := oneToTwelve()
	assert.Empty(t, AppendTokens(nil, tokens[:3], 4, chainSeed))
	assert.Equal(t, AppendTokens(nil, tokens[:8], 4, chainSeed), AppendTokens(nil, tokens[:11], 4, chainSeed))
	assert.Empty(t, AppendTokens(nil, tokens, 0, chainSeed))
	assert.Empty(t, AppendTokens(nil, tokens, -1, chainSeed))
	assert.Empty(t, AppendText(nil, "text", 0, chainSeed))
	assert.Empty(t, AppendText(nil, "", 1, chainSeed))
	assert.Len(t, AppendText(nil, "text", 1, chainSeed), 4)
	assert.Equal(t, []uint64{7, AppendText(nil, "t", 1, chainSeed)[0]}, AppendText([]uint64{7}, "t", 1, chainSeed))
}

func TestPromptInPieces(t *testing.T) {
	const text = "the quick brown fox jumps over the lazy dog"
	seed := SeedFor("llama", "", "")
	var hashes []uint64
	for i := 0; i+8 <= len(text); i += 8 {
		h := HashBlock([]byte(text[i:i+8]), seed)
		if i > 0 {
			h = Chain(hashes[len(hashes)-1], h)
		}
		hashes = append(hashes, h)
	}
	assert.Equal(t, AppendText(nil, text, 8, seed), hashes)
}

func TestHashingAllocatesOnlyToGrow(t *testing.T) {
	tokens, text := make([]uint32, 8192), string(make([]byte, 8192))
	dst := make([]uint64, 0, 512)
	assert.Zero(t, testing.AllocsPerRun(10, func() { dst = AppendTokens(dst[:0], tokens, 16, 1) }))
	assert.Zero(t, testing.AllocsPerRun(10, func() { dst = AppendText(dst[:0], text, 64, 1) }))
	if race.Enabled {
		t.Skip("growing a slice costs the race detector one more")
	}
	assert.Equal(t, 1., testing.AllocsPerRun(10, func() { AppendTokens(nil, tokens, 16, 1) }))
}

func FuzzHash(f *testing.F) {
	f.Add([]byte("the quick brown fox jumps over the lazy dog"), 4, uint64(1337))
	f.Add([]byte("x"), 1, uint64(0))
	f.Fuzz(func(t *testing.T, data []byte, size int, seed uint64) {
		size = size & 0x1ff
		tokens := make([]uint32, len(data)/4)
		for i := range tokens {
			tokens[i] = binary.LittleEndian.Uint32(data[4*i:])
		}
		hashes := AppendTokens(nil, tokens, size, Seed(seed))
		if size == 0 {
			require.Empty(t, hashes)
			return
		}
		require.Len(t, hashes, len(tokens)/size)
		if len(hashes) > 0 {
			require.Equal(t, hashes, appendBytes(nil, encoded(tokens), 4*size, Seed(seed)))
			require.Equal(t, hashes, AppendText(nil, string(data[:4*size*len(hashes)]), 4*size, Seed(seed)))
			half := len(hashes) / 2
			require.Equal(t, hashes[:half], slices.Clip(AppendTokens([]uint64{}, tokens[:half*size], size, Seed(seed))))
		}
		require.Len(t, AppendText(nil, string(data), size, Seed(seed)), len(data)/size)
	})
}
