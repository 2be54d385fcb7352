package requestkey

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// tensor calls take for each text, or once for all integers, of the input of a KServe v2 request that has the name. The
// inputs are field 5, with their raw contents in the same order in field 7.
func (s *source) tensor(name string, take func(value)) {
	var input message
	at, found := 0, -1
	if !s.cheap {
		s.walk(s.message, path{{num: 5}}, kindMessage|kindEncoded, func(v value) {
			if in := v.message(); found < 0 && s.text(in, 1) == name {
				found, input = at, in
			}
			at++
		})
	}
	if found < 0 {
		return
	}
	raw, n := "", 0
	s.walk(s.message, path{{num: 7}}, kindBytes|kindEncoded, func(v value) {
		if n == found {
			raw = v.text
		}
		n++
	})
	if found < n {
		elements(s.text(input, 2), bytesOf(raw), take)
		return
	}
	s.walk(input, path{{num: 5}, {num: 8}}, scalar, take)
	var ids []uint32
	for _, num := range []protowire.Number{2, 3, 4, 5} { // int, int64, uint and uint64
		s.walk(input, path{{num: 5}, {num: num}}, kindIDs|kindNumber|kindEncoded, func(v value) { ids = v.appendIDs(ids) })
	}
	if len(ids) > 0 {
		take(value{kind: kindIDs, ids: ids})
	}
}

// elements decodes raw contents: BYTES are a 4-byte little-endian length and
// the data, integers are little-endian. It stops at a length that does not fit.
func elements(datatype string, b []byte, take func(value)) {
	for datatype == "BYTES" && len(b) >= 4 {
		n := binary.LittleEndian.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) {
			return
		}
		take(value{kind: kindEncoded, text: alias(b[:n])})
		b = b[n:]
	}
	size := map[string]int{"INT32": 4, "UINT32": 4, "INT64": 8, "UINT64": 8}[datatype]
	if size == 0 {
		return
	}
	ids := make([]uint32, 0, len(b)/size)
	for ; len(b) >= size; b = b[size:] {
		ids = append(ids, binary.LittleEndian.Uint32(b))
	}
	take(value{kind: kindIDs, ids: ids})
}
