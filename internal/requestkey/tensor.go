package requestkey

import (
	"encoding/binary"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// The inputs of a KServe v2 request and their raw contents in the same order, and what is in an input. Of its contents
// 2 to 5 are int, int64, uint and uint64.
var (
	kserveRequest = mustFields(map[slot]dialect.Path{slotTensor: "5", slotTensorRaw: "7[]"})
	kserveInput   = mustFields(map[slot]dialect.Path{
		slotTensorName: "1", slotTensorType: "2", slotPrompt: "5.8[]", slotTokens: "5.2|5.3|5.4|5.5",
	})
)

func mustFields(paths map[slot]dialect.Path) *fields {
	f := new(fields)
	for s, p := range paths {
		if err := f.add("", s, p); err != nil {
			panic(err) // of a constant
		}
	}
	return f
}

// tensor calls take for each text, or once for all integers, of the input that has the name.
func (s *source) tensor(name string, take func(value)) {
	request := kserveRequest.in(s.message)
	var input source
	at, found := 0, -1
	request.field(slotTensor, 0, func(v value) {
		in := kserveInput.in(v.msg)
		in.field(slotTensorName, 0, func(v value) {
			if found < 0 && v.text == name {
				found, input = at, in
			}
		})
		at++
	})
	if found < 0 {
		return
	}
	raw, n := []byte(nil), 0
	request.field(slotTensorRaw, 0, func(v value) {
		if n == found {
			raw = bytesOf(v.text)
		}
		n++
	})
	if found < n {
		datatype := ""
		input.field(slotTensorType, 0, func(v value) { datatype = v.text })
		elements(datatype, raw, take)
		return
	}
	input.field(slotPrompt, 0, take)
	var ids []uint32
	for alt := range kserveInput.paths[slotTokens] {
		input.field(slotTokens, alt, func(v value) { ids = v.appendIDs(ids) })
	}
	if len(ids) > 0 {
		take(value{kind: kindIDs, ids: ids})
	}
}

// elements decodes raw contents: BYTES are a 4-byte little-endian length and
// the data, integers are little-endian. It stops at a length that does not fit.
func elements(datatype string, b []byte, take func(value)) {
	size := 0
	switch datatype {
	case "BYTES":
		for len(b) >= 4 {
			n := binary.LittleEndian.Uint32(b)
			if b = b[4:]; uint64(n) > uint64(len(b)) {
				return
			}
			take(value{text: alias(b[:n]), borrowed: true})
			b = b[n:]
		}
		return
	case "INT32", "UINT32":
		size = 4
	case "INT64", "UINT64":
		size = 8
	default:
		return
	}
	ids := make([]uint32, 0, len(b)/size)
	for ; len(b) >= size; b = b[size:] {
		ids = append(ids, binary.LittleEndian.Uint32(b))
	}
	take(value{kind: kindIDs, ids: ids})
}
