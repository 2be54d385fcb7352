package requestkey

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// A patch is wire bytes that are appended to an encoded message. Two encoded messages of one type, one behind the
// other, are the two merged: of a scalar the last one counts, messages merge, and lists are joined. So a request gets
// fields without its generated type, and without a second encoding.

// number appends an integer that stands at the place to a patch: of a field of any type but sint, fixed and float.
func (p *place) number(patch []byte, n int64) []byte {
	return p.target().append(patch, protowire.AppendVarint(nil, uint64(n)), protowire.VarintType)
}

// bytes appends a string, bytes or an encoded message that stands at the place to a patch.
func (p *place) bytes(patch, b []byte) []byte {
	return p.target().append(patch, protowire.AppendBytes(nil, b), protowire.BytesType)
}

// numbers appends integers to a list that stands at the place.
func (p *place) numbers(patch []byte, list []uint32) []byte {
	var packed []byte
	for _, n := range list {
		packed = protowire.AppendVarint(packed, uint64(n))
	}
	return p.bytes(patch, packed)
}

// target is where a patch writes: the first alternative.
func (p *place) target() path { return p.alts[0] }

// checkTarget returns an error unless a patch can write to each place that a path leads to first.
func (p *place) checkTarget() error {
	if len(p.alts) > 0 && (slices.ContainsFunc(p.target(), func(st step) bool { return st.num == 0 || st.list })) {
		return fmt.Errorf("it is written too: want field numbers, and no list on the way")
	}
	return nil
}

// append appends a field with an encoded value to a patch.
func (p path) append(patch, value []byte, kind protowire.Type) []byte {
	for i := len(p) - 1; i >= 0; i-- {
		st := &p[i]
		if st.key != "" { // an entry of a map
			value = append(protowire.AppendTag(nil, 2, kind), value...)
			key := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), st.key)
			value, kind = protowire.AppendBytes(nil, append(key, value...)), protowire.BytesType
		}
		value = append(protowire.AppendTag(nil, st.num, kind), value...)
		if i > 0 {
			value, kind = protowire.AppendBytes(nil, value), protowire.BytesType
		}
	}
	return append(patch, value...)
}

// MaxTokens returns the bound of output tokens in a request message, 0 where it has none or the dialect does not say
// where it stands.
func (m *Method) MaxTokens(msg any) int {
	defer harmless()
	s := open(msg, m.named, false)
	return max(m.maxTokens.count(&s), 0)
}
