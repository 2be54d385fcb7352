package kvindex

// vectors are the hashes of the tokens 1 to 12 in blocks of 4, and of "the quick brown fox" in blocks of 8
// bytes. They never change: other programs in other languages compute the same.
var vectors = []struct {
	name   string
	seed   Seed
	tokens []uint64
	text   []uint64
}{
	{
		name:   "plain",
		seed:   1337,
		tokens: []uint64{0xcb38e4d7fb2dca5c, 0x44a2b2379d6d3c3d, 0xaea1e67a6c80cf84},
		text:   []uint64{0x4a7bc677897ebd3c, 0x7af338101d0448b5},
	},
	{
		name:   "adapter my-lora",
		seed:   12827409268353072861,
		tokens: []uint64{0xd97c824a0d4bdab1, 0xd6eb73bf819c8ca5, 0x730fce433396ea59},
		text:   []uint64{0x2897832daa5a01f6, 0xccb7d0954ae66f3b},
	},
	{
		name:   "salt tenant-7",
		seed:   16574661553112729674,
		tokens: []uint64{0xbfede5efadd62c9f, 0xc338776ae53f103b, 0xa8bff79c1381873e},
		text:   []uint64{0x60a6d23bb8a2c8bb, 0xc1a461ba0690a644},
	},
	{
		name:   "model llama, adapter my-lora, salt tenant-7",
		seed:   4297904148052679307,
		tokens: []uint64{0x9b5f954cf11bf1bd, 0xf8faf7ac34711a8f, 0x828851622a32246e},
		text:   []uint64{0xe09f9d9acb012087, 0x13a6f45c0d11e0ea},
	},
}
