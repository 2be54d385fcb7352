package requestkey

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/dialect"
)

func TestTensorElements(t *testing.T) {
	for _, tt := range []struct {
		datatype string
		raw      []byte
		texts    []string
		ids      []uint32
	}{
		{"BYTES", []byte("\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00bc"), []string{"a", "", "bc"}, nil},
		{"BYTES", []byte("\x01\x00\x00\x00a\xff\xff\xff\xffbc"), []string{"a"}, nil},
		{"BYTES", []byte("\x05\x00\x00\x00abc"), nil, nil},
		{"BYTES", []byte("\x05\x00"), nil, nil},
		{"INT32", []byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 9}, nil, []uint32{1, 1<<32 - 1}},
		{"UINT64", []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0}, nil, []uint32{1}},
		{"FP32", []byte{1, 0, 0, 0}, nil, nil},
	} {
		texts, ids := decoded(tt.datatype, tt.raw)
		require.Equal(t, tt.texts, texts)
		require.Equal(t, tt.ids, ids)
	}
}

func decoded(datatype string, raw []byte) (texts []string, ids []uint32) {
	elements(datatype, raw, func(v value) {
		if ids = v.ids; v.kind == kindText {
			texts = append(texts, v.text)
		}
	})
	return texts, ids
}

func TestTensorNames(t *testing.T) {
	table := mustTable(t, dialect.Dialect{Methods: []string{"/my.Triton/Infer"}, Prompt: "tensor[QUERY]|tensor[text_input]"})
	msg := build(t, nil, pv{"5#0.1", "text_input"}, pv{"5#0.2", "BYTES"}, pv{"5#1.1", "QUERY"}, pv{"5#1.2", "BYTES"},
		pv{"7", [][]byte{[]byte("\x01\x00\x00\x00a"), []byte("\x01\x00\x00\x00b")}})
	require.Equal(t, "b", read(table.Lookup("/my.Triton/Infer"), everything, msg).Prompt.Text)
	require.Equal(t, "b", read(table.Lookup("/my.Triton/Infer"), everything, marshal(t, msg)).Prompt.Text)
	require.Equal(t, "a", read(table.Lookup("/inference.GRPCInferenceService/ModelInfer"), everything, msg).Prompt.Text)
}

func FuzzTensor(f *testing.F) {
	f.Add("BYTES", []byte("\x01\x00\x00\x00a\x02\x00\x00\x00bc"), uint8(0))
	f.Add("INT64", []byte{1, 0, 0, 0, 0, 0, 0, 0}, uint8(1))
	m := mustTable(f).Lookup("/inference.GRPCInferenceService/ModelInfer")
	f.Fuzz(func(t *testing.T, datatype string, raw []byte, flip uint8) {
		texts, ids := decoded(datatype, raw)
		n := 0
		for _, s := range texts {
			n += 4 + len(s)
		}
		require.LessOrEqual(t, n, len(raw))
		require.LessOrEqual(t, 4*len(ids), len(raw))
		if datatype == "BYTES" && n == len(raw) {
			var again []byte
			for _, s := range texts {
				again = append(binary.LittleEndian.AppendUint32(again, uint32(len(s))), s...)
			}
			require.Equal(t, string(raw), string(again))
		}
		read(m, everything, raw) // as a whole message
		if len(datatype) < 1<<10 && len(raw) < 1<<12 {
			in := []pv{{"5#0.1", "text_input"}, {"5#0.2", []byte(datatype)}, {"7", [][]byte{raw}}}
			b := marshal(t, build(t, nil, in...))
			if len(b) > 0 {
				b[int(flip)%len(b)] ^= flip
			}
			read(m, everything, b)
		}
	})
}
