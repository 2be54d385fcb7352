package requestkey

import (
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
)

// mixMedia makes the prompt of a request that of its media: the id of each is mixed into the token at its first
// placeholder, and so into the block of that token and those that follow. Media whose place is not known go into the
// cache salt, and so into every block.
func (m *Method) mixMedia(q *policy.Request, s *source) {
	copied := false
	for _, alt := range m.media.alts {
		m.media.alternative(s, alt, func(v value) {
			m.mediaIn(&source{message: v.message()}, func(hash uint64, at int64) {
				if at < 0 || at >= int64(len(q.Prompt.Tokens)) {
					q.CacheSalt += "\x00" + strconv.FormatUint(hash, 16)
					return
				}
				if !copied {
					q.Prompt.Tokens, copied = slices.Clone(q.Prompt.Tokens), true
				}
				q.Prompt.Tokens[at] ^= uint32(hash ^ hash>>32)
			})
		})
	}
}

// mediaIn calls mix for the media of a message that holds some, with the places of their first placeholders; -1 is not
// known. Several pair with their places one by one, or are one where that is not possible.
func (m *Method) mediaIn(s *source, mix func(hash uint64, at int64)) {
	var ids []string
	m.mediaID.each(s, func(v value) {
		if id := v.string(); id != "" {
			ids = append(ids, id)
		}
	})
	var places []int64
	m.mediaOffset.each(s, func(v value) {
		if v.kind == kindNumber || v.num == 0 { // an offset of 0 is not encoded
			places = append(places, v.num)
		}
	})
	switch {
	case len(ids) > 0 && len(ids) == len(places):
		for i, id := range ids {
			mix(xxh3.HashString(id), places[i])
		}
	case len(ids) == 1:
		mix(xxh3.HashString(ids[0]), -1)
	case s.populated() > 0:
		at := int64(-1)
		if len(places) > 0 {
			at = slices.Min(places)
		}
		mix(xxh3.Hash(s.encoded()), at)
	}
}
