package requestkey

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
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
		if ids = v.ids; v.kind == kindEncoded {
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

// The host copies what it reads of a message apart from the prompt, and the application may reuse the message's
// memory.
func TestReadsAreCopies(t *testing.T) {
	tensors := build(t, nil, pv{"5#0.1", "lora_task_id"}, pv{"5#0.2", "BYTES"}, pv{"7", [][]byte{[]byte("\x04\x00\x00\x00lora")}})
	q := read(mustTable(t).Lookup("/inference.GRPCInferenceService/ModelInfer"), everything, tensors)
	clear(tensors.Get(tensors.Descriptor().Fields().ByNumber(7)).List().Get(0).Bytes())
	require.Equal(t, "lora", q.Adapter)

	session := build(t, nil, pv{"1", []byte("a session")})
	table := mustTable(t, dialect.Dialect{Methods: []string{"/x.Y/Z"}, Session: "1"})
	q = read(table.Lookup("/x.Y/Z"), everything, session)
	clear(session.Get(session.Descriptor().Fields().ByNumber(1)).Bytes())
	require.Equal(t, "a session", q.Session)
}

// The sampling parameters of a KServe request give the adapter, before the adapter's own tensor. Their other
// members are not OpenAI's.
func TestSamplingParameters(t *testing.T) {
	m := mustTable(t).Lookup("/inference.GRPCInferenceService/ModelInfer")
	const parameters = `{"lora_name":"p","max_tokens":12,"model":"x","session_id":"x","user":"x","cache_salt":"x",
		"request_id":"x","prompt":"x"}`
	in := []pv{{"5#0.1", "sampling_parameters"}, {"5#0.2", "BYTES"}, {"5#0.5.8", [][]byte{[]byte(parameters)}}}
	all := append(in, pv{"5#1.1", "lora_task_id"}, pv{"5#1.2", "BYTES"}, pv{"5#1.5.8", [][]byte{[]byte("t")}})
	for _, fields := range [][]pv{in, all} {
		msg := build(t, nil, fields...)
		for _, shape := range []any{msg, marshal(t, msg)} {
			require.Equal(t, policy.Request{Adapter: "p"}, read(m, everything, shape))
		}
	}
	q := policy.Request{Adapter: "host"}
	require.NoError(t, m.Request(&q, everything, build(t, nil, all...)))
	require.Equal(t, "host", q.Adapter)
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
