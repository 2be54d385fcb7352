package server

import "github.com/warmpath/warmpath/internal/kvindex"

// blockHashes are the hashes of a prompt of token ids without model, adapter and salt, its tail block included.
func blockHashes(ids []uint32, size int) []uint64 {
	seed := kvindex.SeedFor("", "", "")
	all := kvindex.AppendTokens(nil, ids, size, seed)
	if rest := ids[len(all)*size:]; len(rest) > 0 {
		tail := kvindex.AppendTokens(nil, rest, len(rest), seed)[0]
		if len(all) > 0 {
			tail = kvindex.Chain(all[len(all)-1], tail)
		}
		all = append(all, tail)
	}
	return all
}
