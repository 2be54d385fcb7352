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

// mediaIn returns the media of a message that holds some. Several pair with their offsets one by one.
func (m *Method) mediaIn(s *source) (all []medium) {
	var ids []string
	m.mediaID.each(s, func(v value) {
		if id := v.string(); id != "" {
			ids = append(ids, id)
		}
	})
	var offsets []int64
	m.mediaOffset.each(s, func(v value) {
		if v.kind == kindNumber || v.num == 0 { // an offset of 0 is not encoded
			offsets = append(offsets, v.num)
		}
	})
	switch {
	case len(ids) > 0 && len(ids) == len(offsets):
		for i, id := range ids {
			all = append(all, medium{xxh3.HashString(id), offsets[i]})
		}
	case len(ids) == 1:
		all = append(all, medium{xxh3.HashString(ids[0]), -1})
	case s.populated() > 0:
		at := int64(-1)
		if len(offsets) > 0 {
			at = slices.Min(offsets)
		}
		all = append(all, medium{xxh3.Hash(s.encoded()), at})
	}
	return all
}

// mixMedia makes the prompt of a request that of its media: the id of each is mixed into the token at its first
// placeholder, and so into the block of that token and those that follow. Media whose place is not known go into the
// cache salt, and so into every block.
func (m *Method) mixMedia(q *policy.Request, s *source) {
	var all []medium
	for _, alt := range m.media.alts {
		m.media.alternative(s, alt, func(v value) {
			in := source{message: v.message()}
			all = append(all, m.mediaIn(&in)...)
		})
	}
	if len(all) == 0 {
		return
	}
	q.Prompt.Tokens = slices.Clone(q.Prompt.Tokens)
	for _, x := range all {
		if x.at >= 0 && x.at < int64(len(q.Prompt.Tokens)) {
			q.Prompt.Tokens[x.at] ^= uint32(x.hash ^ x.hash>>32)
		} else {
			q.CacheSalt += "\x00" + strconv.FormatUint(x.hash, 16)
		}
	}
}
