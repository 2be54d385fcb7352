package workload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func tracePath(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join("..", "..", "..", "..", "shared", "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no trace at %s: the traces are not part of the repository", path)
	}
	return path
}

func TestConversationTrace(t *testing.T) {
	rs, err := LoadFile(tracePath(t, "mooncake_conversation.jsonl"), "mooncake")
	require.NoError(t, err)
	require.Len(t, rs, 12031)
	var prompt, output, refs int
	distinct := map[uint64]bool{}
	for _, r := range rs {
		prompt, output, refs = prompt+r.PromptTokens, output+r.OutputTokens, refs+len(r.Segments)
		require.Equal(t, BlockSeed(0), r.Segments[0].Seed)
		for _, s := range r.Segments {
			distinct[s.Seed] = true
		}
	}
	require.Equal(t, 12035, prompt/len(rs))
	require.Equal(t, 343, (output+len(rs)/2)/len(rs))
	require.Equal(t, 288500, refs)
	require.Len(t, distinct, 182790)
}

func TestAgentTrace(t *testing.T) {
	rs, err := LoadFile(tracePath(t, "agent_miniswe.jsonl"), "text")
	require.NoError(t, err)
	require.Len(t, rs, 339)
	sessions := map[string]bool{}
	for _, r := range rs {
		sessions[r.Session] = true
		require.Equal(t, len(r.Tokens()), r.PromptTokens)
	}
	require.Len(t, sessions, 20)
	require.InDelta(t, 552.13, rs[len(rs)-1].At.Seconds(), 0.01)
}

func TestReadErrors(t *testing.T) {
	const ok = `{"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}` + "\n"
	for _, c := range []struct{ name, format, in, err string }{
		{"format", "csv", ok, `trace format "csv" is not one of mooncake, text`},
		{"nothing", "mooncake", "\n\n", "trace has no requests"},
		{"not JSON", "mooncake", ok + "\nx", "line 3: invalid character"},
		{"two on a line", "mooncake", `{} {}`, "line 1: invalid character"},
		{"no timestamp", "mooncake", `{"input_length": 1, "output_length": 1, "hash_ids": [1]}`, "line 1: timestamp is missing"},
		{"negative timestamp", "mooncake", `{"timestamp": -1}`, "line 1: timestamp -1 is out of range"},
		{"huge timestamp", "mooncake", `{"timestamp": 1e300}`, "out of range"},
		{"no input", "mooncake", ok + `{"timestamp": 1}`, "line 2: input_length is missing"},
		{"empty input", "mooncake", `{"timestamp": 1, "input_length": 0}`, "line 1: input_length 0 is not in 1.."},
		{"no output", "mooncake", `{"timestamp": 1, "input_length": 1}`, "output_length is missing"},
		{"negative output", "mooncake", `{"timestamp": 1, "input_length": 1, "output_length": -1}`, "output_length -1 is not in 0.."},
		{"huge output", "mooncake", `{"timestamp": 1, "input_length": 1, "output_length": 99999999999}`, "output_length 99999999999 is not"},
		{"few ids", "mooncake", `{"timestamp": 1, "input_length": 1100, "output_length": 1, "hash_ids": [1]}`, "hash_ids has 1 ids for 1100 tokens, want 3"},
		{"many ids", "mooncake", `{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}`, "hash_ids has 2 ids for 512 tokens, want 1"},
		{"negative id", "mooncake", `{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [-2]}`, "hash_ids"},
		{"text: no session", "text", `{"timestamp": 1}`, "line 1: session_id is missing"},
		{"text: no input", "text", `{"timestamp": 1, "session_id": "s"}`, "line 1: input is missing"},
		{"text: empty input", "text", `{"timestamp": 1, "session_id": "s", "input": ""}`, "line 1: input is empty"},
		{"text: no output", "text", `{"timestamp": 1, "session_id": "s", "input": "x"}`, "line 1: output is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(strings.NewReader(c.in), c.format)
			require.ErrorContains(t, err, c.err)
		})
	}
	_, err := LoadFile(filepath.Join(t.TempDir(), "none"), "text")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestReadMooncake(t *testing.T) {
	in := `{"timestamp": 3000, "input_length": 600, "output_length": 0, "hash_ids": [0, 1], "more": true}

{"timestamp": 2000.5, "input_length": 600, "output_length": 7, "hash_ids": [0]}`
	rs, err := Load(strings.NewReader(in), "mooncake")
	require.NoError(t, err)
	require.Equal(t, []Request{
		{ID: "t3", PromptTokens: 600, OutputTokens: 7, Prefix: -1, Segments: []Segment{{Seed: BlockSeed(0), Len: 512}, {Seed: freshSeed("t3"), Len: 88}}},
		{
			ID: "t1", At: 999500 * time.Microsecond, PromptTokens: 600, OutputTokens: 1, Prefix: -1,
			Segments: []Segment{{Seed: BlockSeed(0), Len: 512}, {Seed: BlockSeed(1), Len: 88}},
		},
	}, rs)
}

func FuzzLoad(f *testing.F) {
	f.Add(`{"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}`, true)
	f.Add(`{"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [0]}`, true)
	f.Add(`{"timestamp": 5, "session_id": "s", "input": "i", "output": "o"}`, false)
	f.Add("\n\n{}", true)
	f.Fuzz(func(t *testing.T, in string, mooncake bool) {
		format := Formats[1]
		if mooncake {
			format = Formats[0]
		}
		rs, err := Load(strings.NewReader(in), format)
		if err != nil {
			return
		}
		for _, r := range rs {
			if r.At < 0 || r.PromptTokens < 1 || r.OutputTokens < 1 || r.ID == "" {
				t.Fatalf("%+v", r)
			}
			hashes, tail := r.Hashes(nil, 16, BaseHashSeed)
			if len(hashes)*16+len(tail) != r.PromptTokens {
				t.Fatalf("%d hashes and %d tokens for %d", len(hashes), len(tail), r.PromptTokens)
			}
		}
	})
}
