package requestkey

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Every method of every built-in dialect reads any bytes as a request and as a response: without a panic, without
// changing them, and within bounds.
func FuzzEveryMethod(f *testing.F) {
	table := mustTable(f)
	var methods []*Method
	for _, d := range Builtin {
		for _, name := range d.Methods {
			methods = append(methods, table.Lookup(name))
		}
	}
	methods = append(methods, table.Lookup("/unknown.Service/Method"))
	for _, tt := range engineRequests {
		f.Add(marshal(f, build(f, tt.oneof, tt.fields...)))
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add([]byte{0x0b, 0x0b, 0x0c, 0x0c})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		for _, m := range methods {
			q := read(m, everything|WantModel, b)
			require.Equal(t, q.Prompt.Len(), q.PromptTokens)
			require.LessOrEqual(t, len(q.Prompt.Tokens), len(b))
			require.LessOrEqual(t, len(q.Session), MaxSession)
			u := policy.NoUsage
			m.readUsage(&u, b)
			require.GreaterOrEqual(t, u.CachedTokens, -1)
		}
		require.Equal(t, before, b)
	})
}
