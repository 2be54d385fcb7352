package requestkey

import (
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A medium is one, or several that cannot be distinguished.
type medium struct {
	hash uint64
	at   int64 // of the first placeholder, -1 = not known
}

// endMedia ends a message that holds media. Several media pair with their offsets one by one.
func (v *values) endMedia(m message) {
	switch {
	case len(v.ids) > 0 && len(v.ids) == len(v.offsets):
		for i, id := range v.ids {
			v.media = append(v.media, medium{xxh3.HashString(id), v.offsets[i]})
		}
	case len(v.ids) == 1:
		v.media = append(v.media, medium{xxh3.HashString(v.ids[0]), -1})
	case m.populated() > 0:
		at := int64(-1)
		if len(v.offsets) > 0 {
			at = slices.Min(v.offsets)
		}
		v.media = append(v.media, medium{xxh3.Hash(m.encoded()), at})
	}
	v.ids, v.offsets = v.ids[:0], v.offsets[:0]
}

// mix makes the prompt of a request that of its media: the id of each is mixed into the token at its first
// placeholder, and so into the block of that token and those that follow. Media whose place is not known go into the
// cache salt, and so into every block.
func (v *values) mix(q *policy.Request) {
	q.Prompt.Tokens = slices.Clone(q.Prompt.Tokens)
	for _, m := range v.media {
		if m.at >= 0 && m.at < int64(len(q.Prompt.Tokens)) {
			q.Prompt.Tokens[m.at] ^= uint32(m.hash ^ m.hash>>32)
		} else {
			q.CacheSalt += "\x00" + strconv.FormatUint(m.hash, 16)
		}
	}
}
