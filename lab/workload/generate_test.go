package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTransforms(t *testing.T) {
	load := func() []Request {
		in := ""
		for i := range 20 {
			in += fmt.Sprintf(`{"timestamp": %d, "input_length": 1024, "output_length": 9, "hash_ids": [0, %d]}`+"\n", i/10*3000, i+1)
		}
		rs, err := Load(strings.NewReader(in), "mooncake")
		require.NoError(t, err)
		return rs
	}
	rs := load()
	ScaleRate(rs, 2)
	require.Equal(t, 1500*time.Millisecond, rs[19].At)
	require.Panics(t, func() { ScaleRate(rs, 0) })

	a, b, c := load(), load(), load()
	Jitter(a, 3*time.Second, 1)
	Jitter(b, 3*time.Second, 1)
	Jitter(c, 3*time.Second, 2)
	require.Equal(t, a, b)
	require.NotEqual(t, a, c)
	require.True(t, slices.IsSortedFunc(a, func(x, y Request) int { return int(x.At - y.At) }))
	require.Less(t, a[19].At, 6*time.Second)

	rs = Copies(load(), 3)
	require.Len(t, rs, 60)
	ids, heads, tails := map[string]bool{}, map[uint64]bool{}, map[uint64]bool{}
	for _, r := range rs {
		ids[r.ID], heads[r.Segments[0].Seed], tails[r.Segments[1].Seed] = true, true, true
	}
	require.Len(t, ids, 60)
	require.Len(t, heads, 1, "block 0 is common")
	require.Len(t, tails, 60, "the rest is not")
}

// Copies of a generated conversation still contain the answers to their own requests.
func TestCopiesKeepAnswers(t *testing.T) {
	rs, err := Generate(Spec{Name: "chat", Rate: 2, Duration: 10 * time.Minute, Seed: 1})
	require.NoError(t, err)
	checkAnswers(t, Copies(rs, 3))
	text := []Request{{ID: "a", Session: "s", Text: "hello", PromptTokens: 2, OutputTokens: 1}}
	rs = Copies(text, 2)
	require.Equal(t, 18, rs[1].PromptTokens)
	require.Len(t, rs[1].Text, 69)
	require.Equal(t, "s#1", rs[1].Session)
}

// checkAnswers checks that each turn's prompt is the previous one, its answer, and something new.
func checkAnswers(t *testing.T, rs []Request) (turns int) {
	before := map[string]*Request{}
	for i := range rs {
		r := &rs[i]
		if p := before[r.Session]; p != nil && r.Session != "" && r.Turn == p.Turn+1 {
			turns++
			want := appendTokens(p.Tokens(), OutputSeed(p.ID), 0, p.OutputTokens)
			require.Equal(t, want, r.Tokens()[:len(want)])
		}
		if p := before[r.Session]; p == nil || r.Turn > p.Turn {
			before[r.Session] = r
		}
	}
	return turns
}

func TestGenerate(t *testing.T) {
	for _, c := range []struct {
		name                  string
		prompt, output, turns int
		prefixes, shared      int
	}{
		{"chat", 1700, 80, 6, 1, 500},
		{"cross-session", 4400, 80, 3, 32, 4000},
		{"prefill-heavy", 5000, 32, 4, 2, 3000},
		{"decode-heavy", 3300, 250, 1, 2, 3000},
		{"reasoning", 500, 4000, 1, 0, 0},
		{"agents", 8000, 150, 20, 5, 6000},
		{"hot-prefix", 3072, 120, 1, 1, 2560},
		{"nothing-shared", 2000, 200, 1, 0, 0},
		{"b2b", 7200, 1000, 1, 150, 6000},
		{"documents", 14200, 143, 4, 0, 0},
		{"coding-agents", 22000, 200, 30, 4, 14000},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := Spec{Name: c.name, Rate: 5, Duration: 20 * time.Minute, Seed: 3}
			rs, err := Generate(spec)
			require.NoError(t, err)
			again, err := Generate(spec)
			require.NoError(t, err)
			require.Equal(t, rs, again)
			require.InEpsilon(t, 6000, len(rs), 0.25)

			var prompt, output, first, last int
			ids, prefixes := map[string]bool{}, map[int]bool{}
			for i, r := range rs {
				require.True(t, i == 0 || rs[i-1].At <= r.At)
				require.False(t, ids[r.ID])
				ids[r.ID], prefixes[r.Prefix] = true, true
				sum := 0
				for _, s := range r.Segments {
					require.Positive(t, s.Len)
					sum += int(s.Len)
				}
				require.Equal(t, r.PromptTokens, sum)
				require.Positive(t, r.OutputTokens)
				if r.Turn == 0 {
					prompt, first = prompt+r.PromptTokens, first+1
				}
				last, output = max(last, r.Turn), output+r.OutputTokens
				if c.shared > 0 {
					require.EqualValues(t, c.shared, r.Segments[0].Len)
				}
			}
			require.InEpsilon(t, c.prompt, prompt/first, 0.03)
			require.InEpsilon(t, c.output, output/len(rs), 0.05)
			require.Equal(t, c.turns-1, last)
			require.Len(t, prefixes, max(c.prefixes, 1))
			if turns := checkAnswers(t, rs[:min(len(rs), 400)]); c.turns > 1 {
				require.Positive(t, turns)
			}
			spec.Seed = 4
			other, err := Generate(spec)
			require.NoError(t, err)
			require.NotEqual(t, rs[0].Segments[0].Seed, other[0].Segments[0].Seed)
		})
	}
}

func TestGenerateRefuses(t *testing.T) {
	for _, s := range []Spec{{Name: "x", Rate: 1}, {Name: "chat"}, {Name: "chat", Rate: -1}, {Name: "chat", Rate: 1, Duration: -1}} {
		_, err := Generate(s)
		require.Error(t, err)
	}
	require.Len(t, Names(), 11)
	rs, err := Generate(Spec{Name: "hot-prefix", Rate: 0.5})
	require.NoError(t, err)
	require.Greater(t, rs[len(rs)-1].At, 30*time.Minute)
}
