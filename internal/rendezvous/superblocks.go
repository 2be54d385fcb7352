package rendezvous

import "github.com/warmpath/warmpath/balancer/policy"

// PerSuperblock returns how many blocks of a size, in a unit of so many per token, a
// superblock has; 0 if they do not divide it.
func PerSuperblock(size, unit int) int {
	if size < 1 || policy.SuperblockTokens*unit%size != 0 {
		return 0
	}
	return policy.SuperblockTokens * unit / size
}

// Superblocks appends the hashes that end a superblock, and returns how many blocks one
// has; 0 where blocks do not divide it.
func (b *Blocks) Superblocks(to []uint64) (hashes []uint64, per int) {
	if per = PerSuperblock(b.Size, b.Unit); per == 0 {
		return to, 0
	}
	for end := per; end <= b.full(); end += per {
		to = append(to, b.Hashes[end-1])
	}
	return to, per
}
