package requestkey

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// readRaw reads an encoded message. Its memory may be reused after the call, so
// whatever outlives the prompt is copied.
func (f *fields) readRaw(b []byte, v *values) {
	v.borrowed = true
	f.walk(&f.root, b, v)
}

// walk reads an encoded message as far as it can be read.
func (f *fields) walk(n *node, b []byte, v *values) {
	for len(b) > 0 {
		num, typ, k := protowire.ConsumeTag(b)
		if k < 0 {
			return
		}
		b = b[k:]
		var x uint64
		var data []byte
		switch typ {
		case protowire.VarintType:
			x, k = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			data, k = protowire.ConsumeBytes(b)
		default:
			k = protowire.ConsumeFieldValue(num, typ, b)
		}
		if k < 0 {
			return
		}
		b = b[k:]
		if typ != protowire.VarintType && typ != protowire.BytesType {
			continue
		}
		for _, e := range n.edges {
			if e.num == int32(num) && (e.slots&v.need != 0 || e.rivals != 0) {
				f.take(e, typ == protowire.BytesType, x, data, v)
			}
		}
	}
}

// take reads one occurrence of a field: a varint or bytes.
func (f *fields) take(e *edge, isBytes bool, x uint64, data []byte, v *values) {
	if e.rivals != 0 {
		if v.clear(e.rivals); e.slots&v.need == 0 {
			return
		}
	}
	if e.key != "" {
		var ok bool
		if isBytes, x, data, ok = entry(isBytes, data, e.key); !ok {
			return
		}
	}
	switch {
	case e.next != nil && isBytes:
		before := v.mark()
		f.walk(e.next, data, v)
		if e.leaf >= 0 {
			v.endMessage(f, e, message{raw: data})
		} else if e.list {
			v.endElement(e, before, message{raw: data})
		}
	case e.next != nil:
	case e.slot == slotTokens && isBytes:
		if dst := v.tokensFor(uint8(e.leaf)); dst != nil && len(data) > 0 {
			*dst = appendPacked(*dst, data)
		}
	case isBytes:
		v.text(e, alias(data), e.list)
	default:
		v.num(e, int64(x), e.list)
	}
}

// appendPacked decodes packed varints, as many as are whole. Negative int32 ids
// come as 64 bits and are cut to 32.
func appendPacked(dst []uint32, b []byte) []uint32 {
	n := 0
	for _, c := range b {
		n += int(c>>7) ^ 1
	}
	dst = slices.Grow(dst, n)
	for i := 0; i < len(b); {
		if c := b[i]; c < 0x80 {
			dst = append(dst, uint32(c))
			i++
			continue
		}
		if i+1 < len(b) && b[i+1] < 0x80 {
			dst = append(dst, uint32(b[i]&0x7f)|uint32(b[i+1])<<7)
			i += 2
			continue
		}
		x, k := protowire.ConsumeVarint(b[i:])
		if k < 0 {
			break
		}
		dst = append(dst, uint32(x))
		i += k
	}
	return dst
}

// entry returns the value of a map entry if it has the key.
func entry(isBytes bool, b []byte, key string) (valueIsBytes bool, x uint64, data []byte, ok bool) {
	if !isBytes {
		return false, 0, nil, false
	}
	var k []byte
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false, 0, nil, false
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return false, 0, nil, false
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			k, _ = protowire.ConsumeBytes(b)
		case num == 2 && typ == protowire.BytesType:
			data, _ = protowire.ConsumeBytes(b)
			valueIsBytes, ok = true, true
		case num == 2 && typ == protowire.VarintType:
			x, _ = protowire.ConsumeVarint(b)
			valueIsBytes, ok = false, true
		}
		b = b[n:]
	}
	return valueIsBytes, x, data, ok && string(k) == key
}
