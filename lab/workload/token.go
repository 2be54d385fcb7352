package workload

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"
)

// TextBytesPerToken is how many bytes of text count as one token.
const TextBytesPerToken = 4

const (
	golden = 0x9e3779b97f4a7c15

	// Domains keep seeds of different kinds apart.
	domainBlock  = 0xb10c
	domainOutput = 0x0074
	domainFresh  = 0xf7e5
	domainShared = 0x54a7
)

// mix is the finaliser of splitmix64: every bit of x moves every bit of the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// pair gives tokens 2k and 2k+1 of a seed in its low and high half: each byte is one letter from a to p.
func pair(seed, k uint64) uint64 {
	return mix(seed+(k+1)*golden)&0x0f0f0f0f0f0f0f0f + 0x6161616161616161
}

// Token is token i of the stream with this seed: four letters from a to p as a little-endian uint32.
func Token(seed uint64, i int) uint32 {
	p := pair(seed, uint64(i)/2)
	return uint32(p >> (32 * (uint(i) & 1)))
}

// appendTokens appends n tokens of a seed from one on.
func appendTokens(dst []uint32, seed uint64, from, n int) []uint32 {
	for i := range n {
		dst = append(dst, Token(seed, from+i))
	}
	return dst
}

// TokenText is the text of one token: its four bytes.
func TokenText(t uint32) string {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], t)
	return string(b[:])
}

// TextTokens cuts text in tokens of four bytes; the last is padded with zero bytes.
func TextTokens(text string) []uint32 {
	ts, padded := make([]uint32, textLen(text)), make([]byte, TextBytesPerToken*textLen(text))
	copy(padded, text)
	for i := range ts {
		ts[i] = binary.LittleEndian.Uint32(padded[TextBytesPerToken*i:])
	}
	return ts
}

func textLen(text string) int { return (len(text) + TextBytesPerToken - 1) / TextBytesPerToken }

// BlockSeed is the seed of a trace's block id.
func BlockSeed(id uint64) uint64 { return mix(mix(id+golden) + domainBlock) }

// OutputSeed is the seed of the answer to the request with this id, wherever it is generated. The id
// R#n names copy n of request R (see [Copies]); its answer differs from R's.
func OutputSeed(id string) uint64 {
	if at := strings.LastIndexByte(id, '#'); at >= 0 {
		if n, err := strconv.ParseUint(id[at+1:], 10, 32); err == nil && n > 0 {
			return copySeed(OutputSeed(id[:at]), n)
		}
	}
	return mix(xxh3.HashString(id) + domainOutput)
}

// copySeed is the seed that copy n of a workload has instead of s.
func copySeed(s, n uint64) uint64 { return mix(s ^ mix(n*golden)) }
