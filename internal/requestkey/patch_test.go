package requestkey

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// placeAt compiles a path.
func placeAt(t testing.TB, p dialect.Path) *place {
	t.Helper()
	alts, err := parsePath(p)
	require.NoError(t, err)
	at := &place{alts: alts}
	require.NoError(t, at.checkTarget(p))
	return at
}

// A patch after an encoded message is the message merged with the patch, as proto.Merge does it.
func TestPatchMerges(t *testing.T) {
	base := []pv{
		{"1", "r"}, {"4.1", []uint32{7, 8}}, {"8.1", uint32(300)}, {"8.2", uint32(5)}, {"10.2", "salt"},
		{"11[a].1", uint32(1)}, {"11[b].1", uint32(2)},
	}
	for _, tt := range []struct {
		name  string
		patch []byte
		same  []pv
	}{
		{"a scalar", placeAt(t, "8.1").number(nil, 1), []pv{{"8.1", uint32(1)}}},
		{"one that is not set", placeAt(t, "8.9").number(nil, 1<<31), []pv{{"8.9", uint32(1 << 31)}}},
		{"a negative one", placeAt(t, "12").number(nil, -1), []pv{{"12", int64(-1)}}},
		{"a list", placeAt(t, "4.1").numbers(nil, ids), []pv{{"4.1", ids}}},
		{"a string", placeAt(t, "10.2").bytes(nil, []byte("other")), []pv{{"10.2", "other"}}},
		{"the first alternative", placeAt(t, "10.2|1").bytes(nil, []byte("other")), []pv{{"10.2", "other"}}},
		{"an entry of a map", placeAt(t, "11[b].1").number(nil, 3), []pv{{"11[b].1", uint32(3)}}},
		{"a message", placeAt(t, "8").bytes(nil, placeAt(t, "2").number(nil, 9)), []pv{{"8.2", uint32(9)}}},
		{"several", placeAt(t, "8.2").number(placeAt(t, "8.1").number(nil, 4), 6), []pv{{"8.1", uint32(4)}, {"8.2", uint32(6)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			requireMerged(t, base, tt.patch, tt.same)
		})
	}
}

// requireMerged compares a message with a patch after it to proto.Merge of the message and the same fields.
func requireMerged(t testing.TB, base []pv, patch []byte, same []pv) {
	t.Helper()
	both := build(t, nil, slices.Concat(base, same)...) // its type has all fields
	typ := both.Descriptor()
	decode := func(b []byte) proto.Message {
		m := dynamicpb.NewMessage(typ)
		require.NoError(t, proto.Unmarshal(b, m))
		return m
	}
	want := decode(marshal(t, build(t, nil, base...)))
	proto.Merge(want, decode(marshal(t, build(t, nil, same...))))
	got := decode(slices.Concat(marshal(t, build(t, nil, base...)), patch))
	require.True(t, proto.Equal(want, got), "want %v\ngot  %v", want, got)
}

func FuzzPatch(f *testing.F) {
	f.Add("salt", int64(1), []byte{1, 200, 3})
	f.Fuzz(func(t *testing.T, text string, n int64, list []byte) {
		var ids []uint32
		for _, b := range list {
			ids = append(ids, uint32(b)<<(b%25))
		}
		text, n = string([]rune(text))+"x", n|1 // valid UTF-8; what is zero proto.Merge does not take over
		base := []pv{{"1", "r"}, {"4.1", []uint32{7}}, {"8.1", int64(300)}, {"10.2", "salt"}, {"11[a].1", int64(1)}}
		patch := placeAt(t, "4.1").numbers(nil, ids)
		patch = placeAt(t, "8.1").number(patch, n)
		patch = placeAt(t, "10.2").bytes(patch, []byte(text))
		patch = placeAt(t, "11[b].1").number(patch, n)
		requireMerged(t, base, patch, []pv{{"4.1", ids}, {"8.1", n}, {"10.2", text}, {"11[b].1", n}})
	})
}

// The output token limit of every engine whose outputs may go on elsewhere is read from its field.
func TestMaxTokens(t *testing.T) {
	table := mustTable(t)
	for method, at := range map[string]string{
		"/vllm.Inference/Generate":                        "8.1",
		"/vllm.Inference/GenerateStream":                  "8.1",
		"/vllm.grpc.engine.VllmEngine/Generate":           "4.8",
		"/sglang.grpc.scheduler.SglangScheduler/Generate": "4.8",
		"/trtllm.TrtllmService/Generate":                  "5",
	} {
		m := table.Lookup(method)
		msg := build(t, nil, pv{at, uint32(77)})
		require.Equal(t, 77, m.MaxTokens(msg), method)
		require.Equal(t, 77, m.MaxTokens(marshal(t, msg)), method)
	}
	none := table.Lookup("/sglang.runtime.v1.SglangService/ChatComplete")
	require.Zero(t, none.MaxTokens([]byte{8, 1}))
	_, err := NewTable(dialect.Dialect{Methods: []string{"/a.B/C"}, MaxTokens: "sampling.max_tokens"})
	require.ErrorContains(t, err, "max_tokens")
	_, err = NewTable(dialect.Dialect{Methods: []string{"/a.B/C"}, MaxTokens: "3[].1"})
	require.ErrorContains(t, err, "max_tokens")
}
