package requestkey

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/balancer/policy"
)

// reorder rewrites an encoded message with the highest field number first.
func reorder(b []byte) []byte {
	type field struct {
		num  protowire.Number
		data []byte
	}
	var fields []field
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		fields = append(fields, field{num, b[:n]})
		b = b[n:]
	}
	slices.SortStableFunc(fields, func(a, b field) int { return int(b.num - a.num) })
	var out []byte
	for _, f := range fields {
		out = append(out, f.data...)
	}
	return out
}

func TestRaw(t *testing.T) {
	varints := func(num protowire.Number, ids ...uint64) (b []byte) {
		for _, id := range ids {
			b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), id)
		}
		return b
	}
	packed := func(num protowire.Number, ids ...uint64) (b []byte) {
		for _, id := range ids {
			b = protowire.AppendVarint(b, id)
		}
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
	}
	field := func(num protowire.Number, parts ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), slices.Concat(parts...))
	}
	str := func(num protowire.Number, s string) []byte { return field(num, []byte(s)) }
	m := mustTable(t).Lookup("/vllm.Inference/Generate")
	for _, tt := range []struct {
		name string
		raw  []byte
		want policy.Request
	}{
		{"unpacked", field(4, varints(1, 1, 300, 70000)), policy.Request{Prompt: tokens(1, 300, 70000)}},
		{"packed and unpacked", field(4, packed(1, 1, 300), varints(1, 5), packed(1), packed(1, 6)), policy.Request{Prompt: tokens(1, 300, 5, 6)}},
		{"merged", slices.Concat(field(4, packed(1, 1)), field(4, packed(1, 2))), policy.Request{Prompt: tokens(1, 2)}},
		{"last scalar wins", slices.Concat(str(2, "a"), str(2, "b"), str(3, "x"), str(3, "y")), policy.Request{Model: "b", Prompt: text("y")}},
		{"negative ids", field(4, packed(1, 1<<64-1)), policy.Request{Prompt: tokens(1<<32 - 1)}},
		{"cut inside an id", field(4, []byte{0x0a, 3, 1, 2, 0x80}), policy.Request{Prompt: tokens(1, 2)}},
		{"length beyond the end", append(str(2, "m"), 0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f, 'x'), policy.Request{Model: "m"}},
		{"other wire types", slices.Concat(varints(3, 7), []byte{0x15, 1, 2, 3, 4, 0x7b, 0x7c}, str(2, "m")), policy.Request{Model: "m", Prompt: text("7")}},
		{"no message", []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), policy.Request{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.SetPrompt(tt.want.Prompt)
			require.Equal(t, tt.want, read(m, everything, tt.raw))
		})
	}
}

func FuzzRaw(f *testing.F) {
	table := mustTable(f)
	var methods []*Method
	for i, tt := range engineRequests {
		methods = append(methods, table.Lookup(tt.method))
		f.Add(uint8(i), marshal(f, build(f, tt.oneof, tt.fields...)))
	}
	f.Fuzz(func(t *testing.T, i uint8, b []byte) {
		m := methods[int(i)%len(methods)]
		before := slices.Clone(b)
		q := read(m, everything|WantModel, b)
		require.Equal(t, q.Prompt.Len(), q.PromptTokens)
		require.LessOrEqual(t, len(q.Prompt.Tokens), len(b))
		require.LessOrEqual(t, len(q.Session), MaxSession)
		u := policy.NoUsage
		m.readUsage(&u, b)
		require.Equal(t, before, b)
	})
}
