package requestkey

import (
	"encoding/binary"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Numbers of the KServe v2 protocol (ModelInferRequest, InferInputTensor).
const (
	kserveInputs   = 5
	kserveRaw      = 7
	kserveName     = 1
	kserveDatatype = 2
	kserveContents = 5
	// In InferTensorContents: int, int64, uint, uint64 are 2 to 5.
	kserveInt, kserveUint64, kserveBytes = 2, 5, 8
)

// tensors are the inputs of a request. Contents stand in each input, or in raw
// in the same order.
type tensors struct {
	in  []tensor
	raw [][]byte
}

type tensor struct {
	name, datatype string
	texts          []string
	ids            []uint32
}

// readTensors fills q from the input tensors of a message.
func (m *Method) readTensors(q *policy.Request, msg any, prompt bool) {
	var t tensors
	if b, ok := encoded(msg, true); ok {
		t.decode(b)
	} else if pm, d := reflected(msg); d != nil {
		t.decode(message{typed: pm}.encoded())
	}
	d := m.dialect.Tensors
	if p, ok := t.find(d.Parameters); ok && len(p.texts) > 0 {
		o := objectOf(bytesOf(p.texts[0]), []string{"lora_name", "max_tokens"})
		setIfEmpty(&q.Adapter, o.text("lora_name"))
		if n, _ := o.count("max_tokens"); q.ExpectedOutput == 0 {
			q.ExpectedOutput = n
		}
	}
	if a, ok := t.find(d.Adapter); ok {
		setIfEmpty(&q.Adapter, a.scalar())
	}
	if n, ok := t.find(d.MaxTokens); ok && q.ExpectedOutput == 0 {
		q.ExpectedOutput, _ = parseCount(n.scalar())
	}
	if !prompt || !q.Prompt.Empty() {
		return
	}
	if ids, ok := t.find(d.Tokens); ok && len(ids.ids) > 0 {
		q.SetPrompt(policy.Prompt{Tokens: ids.ids})
	} else if text, ok := t.find(d.Text); ok && len(text.texts) > 0 {
		q.SetPrompt(policy.Prompt{Text: renderBatch(text.texts[0], text.texts[1:])})
	}
}

// scalar returns the first element as text, a copy; "" when there is none.
func (t *tensor) scalar() string {
	switch {
	case len(t.texts) > 0:
		return strings.Clone(t.texts[0])
	case len(t.ids) > 0:
		return strconv.FormatUint(uint64(t.ids[0]), 10)
	}
	return ""
}

// find returns the first tensor that has one of the names, with its elements.
func (t *tensors) find(names string) (*tensor, bool) {
	for name := range strings.SplitSeq(names, "|") {
		for i := range t.in {
			if x := &t.in[i]; name != "" && x.name == name {
				if i < len(t.raw) {
					x.elements(t.raw[i])
				}
				return x, true
			}
		}
	}
	return nil, false
}

// elements decodes raw contents: BYTES are a 4-byte little-endian length and
// the data, integers are little-endian. It stops at a length that does not fit.
func (t *tensor) elements(b []byte) {
	t.texts, t.ids = nil, nil
	size := 0
	switch t.datatype {
	case "BYTES":
		for len(b) >= 4 {
			n := binary.LittleEndian.Uint32(b)
			if b = b[4:]; uint64(n) > uint64(len(b)) {
				return
			}
			t.texts = append(t.texts, alias(b[:n]))
			b = b[n:]
		}
	case "INT32", "UINT32":
		size = 4
	case "INT64", "UINT64":
		size = 8
	}
	if size == 0 {
		return
	}
	t.ids = make([]uint32, 0, len(b)/size)
	for ; len(b) >= size; b = b[size:] {
		t.ids = append(t.ids, binary.LittleEndian.Uint32(b))
	}
}

// decode reads the inputs of an encoded request.
func (t *tensors) decode(b []byte) {
	eachBytes(b, func(num protowire.Number, data []byte) {
		switch num {
		case kserveRaw:
			t.raw = append(t.raw, data)
		case kserveInputs:
			var in tensor
			eachBytes(data, func(num protowire.Number, data []byte) {
				switch num {
				case kserveName:
					in.name = alias(data)
				case kserveDatatype:
					in.datatype = alias(data)
				case kserveContents:
					in.decode(data)
				}
			})
			t.in = append(t.in, in)
		}
	})
}

func (t *tensor) decode(b []byte) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return
		}
		_, _, tag := protowire.ConsumeTag(b)
		data := b[tag:n]
		b = b[n:]
		switch {
		case num == kserveBytes && typ == protowire.BytesType:
			data, _ = protowire.ConsumeBytes(data)
			t.texts = append(t.texts, alias(data))
		case num >= kserveInt && num <= kserveUint64 && typ == protowire.BytesType:
			data, _ = protowire.ConsumeBytes(data)
			t.ids = appendPacked(t.ids, data)
		case num >= kserveInt && num <= kserveUint64 && typ == protowire.VarintType:
			t.ids = appendPacked(t.ids, data)
		}
	}
}

// eachBytes calls f for every length-delimited field, as far as b can be read.
func eachBytes(b []byte, f func(protowire.Number, []byte)) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return
		}
		if typ == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			data, _ := protowire.ConsumeBytes(b[tag:])
			f(num, data)
		}
		b = b[n:]
	}
}
