package dialect

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// A node is the part of the paths that starts in one message, by field number.
type node struct{ edges []edge }

type edge struct {
	num    int32
	list   bool
	key    string
	slots  uint32 // at or below this edge
	refs   uint32
	rivals uint32 // refs of the other members of the oneof
	leaf   int8   // ref of the path that ends here, -1 = none
	slot   slot   // of the leaf
	turn   int8   // ref of the role when this is a chat turn, -1 = none
	next   *node
}

// insert adds a path to the tree. Paths with names are left out.
func (n *node) insert(l leaf) {
	if slices.ContainsFunc(l.path, func(s step) bool { return s.num == 0 }) {
		return
	}
	refs := uint32(1) << l.ref
	for _, p := range l.parts {
		refs |= 1 << p.ref
	}
	for i, st := range l.path {
		e := n.edge(st)
		e.slots |= l.slot.bit()
		e.refs |= refs
		if i < len(l.path)-1 || len(l.parts) > 0 {
			if e.next == nil {
				e.next = new(node)
			}
			n = e.next
		}
		if i == len(l.path)-1 {
			if len(l.parts) > 0 {
				e.turn = int8(l.ref)
			} else {
				e.leaf, e.slot = int8(l.ref), l.slot
			}
		}
	}
	for _, p := range l.parts {
		n.insert(p)
	}
}

// edge returns the edge of a step that has room for one more path.
func (n *node) edge(st step) *edge {
	for i := range n.edges {
		e := &n.edges[i]
		if e.num == st.num && e.list == st.list && e.key == st.key && e.leaf < 0 && e.turn < 0 {
			return e
		}
	}
	n.edges = append(n.edges, edge{num: st.num, list: st.list, key: st.key, leaf: -1, turn: -1})
	return &n.edges[len(n.edges)-1]
}

// exclude makes the top-level fields of a group rivals.
func (n *node) exclude(group []int32) {
	for i := range n.edges {
		for j := range n.edges {
			a, b := &n.edges[i], &n.edges[j]
			if a.num != b.num && slices.Contains(group, a.num) && slices.Contains(group, b.num) {
				a.rivals |= b.refs
			}
		}
	}
}

// walk reads an encoded message as far as it can be read.
func (n *node) walk(b []byte, v *values) {
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
		for i := range n.edges {
			if e := &n.edges[i]; e.num == int32(num) && (e.slots&v.need != 0 || e.rivals != 0) {
				e.take(typ == protowire.BytesType, x, data, v)
			}
		}
	}
}

// take reads one occurrence of a field: a varint or bytes.
func (e *edge) take(isBytes bool, x uint64, data []byte, v *values) {
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
	if e.leaf >= 0 && v.wants(e.slot) {
		e.put(isBytes, x, data, v)
	}
	if e.next == nil || !isBytes {
		return
	}
	e.next.walk(data, v)
	switch {
	case e.turn >= 0 && v.wants(slotMessages):
		v.flushTurn(uint8(e.turn))
	case e.list:
		v.flush(e.refs)
	}
}

func (e *edge) put(isBytes bool, x uint64, data []byte, v *values) {
	ref := uint8(e.leaf)
	switch {
	case e.slot == slotTokens && isBytes && len(data) == 0:
	case e.slot == slotTokens:
		if dst := v.tokensFor(ref); dst != nil {
			if isBytes {
				*dst = appendPacked(*dst, data)
			} else {
				*dst = append(*dst, uint32(x))
			}
		}
	case isBytes && e.list:
		v.pushText(ref, alias(data))
	case isBytes:
		v.putText(ref, alias(data))
	case e.list:
		v.pushNum(ref, int64(x))
	default:
		v.putNum(ref, int64(x))
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
