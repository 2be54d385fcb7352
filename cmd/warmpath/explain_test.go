package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The orders equal those of Ray's ring with 100 virtual nodes and 2 fallbacks.
func TestExplainAgreesWithRay(t *testing.T) {
	for session, order := range map[string][3]string{
		"user_42":       {"r2", "r0", "r1"},
		"user_123":      {"r0", "r2", "r1"},
		"burst-session": {"r2", "r1", "r0"},
	} {
		for _, key := range []string{"--session", "--request-id"} {
			code, stdout, stderr := command(t, "explain", "--policy", "consistent_hash", "--replicas", "r0,r1,r2", key, session, "--json")
			require.Equal(t, exitOK, code, stderr)
			require.Empty(t, stderr)
			want := `{"policy":"consistent_hash","replica":"` + order[0] + `","fallbacks":["` + order[1] + `","` + order[2] + `"],"reason":"ring"`
			require.Equal(t, want, stdout[:len(want)])
			var x explanation
			strict(t, stdout, &x)
			require.Zero(t, x.Place)
		}
	}
}

// The order of the fleet and its addresses change nothing. 1+K replicas are listed, however large the fleet is.
func TestExplainListsWhatThePolicyUses(t *testing.T) {
	ask := func(args ...string) (x explanation) {
		code, stdout, stderr := command(t, append([]string{"explain", "--json", "--session", "user_42"}, args...)...)
		require.Equal(t, exitOK, code, stderr)
		strict(t, stdout, &x)
		return x
	}
	fleet := file(t, "fleet.yaml", `replicas: [{id: r1, address: "b:1"}, {id: r2, address: "c:1"}, {id: r0, address: "a:1"}]`)
	x := ask("--policy", "consistent_hash", "--fleet", fleet)
	require.Equal(t, "r2", x.Replica)
	require.Equal(t, []string{"r0", "r1"}, x.Fallbacks)
	require.Equal(t, x, ask("--policy", "consistent_hash", "--replicas", "r2=a:1,r0=b:1,r1"))

	many := "r0,r1,r2,r3,r4,r5,r6,r7"
	require.Len(t, ask("--policy", "consistent_hash", "--replicas", many).Fallbacks, 2)
	one := file(t, "one.json", `{"policy":{"consistent_hash":{"num_fallback_replicas":1}},"max_ongoing_requests":3}`)
	require.Len(t, ask("--config", one, "--replicas", many).Fallbacks, 1)
	require.Equal(t, "consistent_hash", ask("--config", one, "--replicas", many).Policy)
	none := file(t, "none.yaml", "policy:\n  consistent_hash:\n    num_fallback_replicas: off\n")
	require.Equal(t, []string{}, ask("--config", none, "--policy", "consistent_hash", "--replicas", many).Fallbacks)
	require.Len(t, ask("--policy", "round_robin", "--replicas", many).Fallbacks, 7)
	require.Len(t, ask("--policy", "power_of_two_choices", "--replicas", many).Fallbacks, 7)
	bare := file(t, "bare.yaml", "max_attempts: 2")
	require.Equal(t, "round_robin", ask("--config", bare, "--policy", "round_robin", "--replicas", many).Policy)
}

func TestExplainPrompt(t *testing.T) {
	prompt := strings.Repeat("a prompt that is longer than a block ", 20)
	path := file(t, "prompt", prompt)
	ask := func(args ...string) (x explanation) {
		code, stdout, stderr := command(t, append([]string{"explain", "--json", "--replicas", "r0,r1,r2,r3"}, args...)...)
		require.Equal(t, exitOK, code, stderr)
		strict(t, stdout, &x)
		return x
	}
	x := ask("--prompt", prompt)
	require.Equal(t, "kv_aware", x.Policy)
	require.EqualValues(t, "rendezvous", x.Reason)
	require.Equal(t, len(prompt)/4, x.PromptTokens)
	require.Len(t, x.Fallbacks, 3)
	require.Equal(t, x, ask("--prompt-file", path))
	moved := false
	for _, adapter := range []string{"a", "b", "c", "d", "e", "f"} {
		moved = moved || ask("--prompt", prompt, "--adapter", adapter).Replica != x.Replica
	}
	require.True(t, moved, "the adapter is part of the key")
	require.EqualValues(t, "rendezvous", ask("--session", "s").Reason)
	require.EqualValues(t, "no_key", ask().Reason)

	var out, err bytes.Buffer
	root := newRoot()
	root.SetIn(strings.NewReader(prompt))
	root.SetArgs([]string{"explain", "--json", "--replicas", "r0,r1,r2,r3", "--prompt-file", "-"})
	root.SetOut(&out)
	root.SetErr(&err)
	require.NoError(t, root.ExecuteContext(t.Context()))
	var piped explanation
	strict(t, out.String(), &piped)
	require.Equal(t, x, piped)
}

func TestExplainInWords(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"--policy", "consistent_hash", "--session", "user_42"}, []string{
			"consistent_hash sends the request to r2.", "ring:", "1 of 3", "r0, then r1"}},
		{[]string{"--policy", "consistent_hash", "--request-id", "user_42"}, []string{"ring:", "1 of 3"}},
		{[]string{"--policy", "consistent_hash"}, []string{"no_key:", "--session, --request-id"}},
		{[]string{"--prompt", "hello, world"}, []string{"rendezvous:", "3 tokens"}},
		{[]string{"--session", "s"}, []string{"rendezvous:"}},
		{[]string{"--policy", "round_robin"}, []string{"round_robin:", "random"}},
		{[]string{"--policy", "kv_aware", "--prompt", "hello, world"}, []string{"rendezvous: the prompt's home"}},
	} {
		code, stdout, stderr := command(t, append([]string{"explain", "--replicas", "r0,r1,r2"}, c.args...)...)
		require.Equal(t, exitOK, code, stderr)
		for _, s := range c.want {
			require.Contains(t, stdout, s)
		}
	}
}

func TestExplainNoReplica(t *testing.T) {
	fleet := file(t, "fleet.yaml", `replicas: [{id: a, address: "h:1", models: [m]}, {id: b, address: "h:2", models: [x], draining: true}]`)
	code, _, stderr := command(t, "explain", "--fleet", fleet, "--model", "x", "--session", "s")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "no replica")
}

// With a tokenizer the prompt has its true length, and its tokens are the key. The tokenizer's errors are printed.
func TestExplainTokens(t *testing.T) {
	config := file(t, "config.yaml", "tokenizer: {from: 'tiktoken:cl100k_base'}")
	ask := func(args ...string) (int, string, string) {
		return command(t, append([]string{"explain", "--replicas", "r0,r1", "--config", config}, args...)...)
	}
	code, stdout, stderr := ask("--json", "--prompt", "hello world")
	require.Equal(t, exitOK, code, stderr)
	var x explanation
	strict(t, stdout, &x)
	require.Equal(t, 2, x.PromptTokens)
	require.Equal(t, []uint32{15339, 1917}, x.FirstTokens)
	require.Empty(t, x.TokenizeError)
	code, stdout, _ = ask("--prompt", "hello world")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "2 tokens (of the tokenizer, from [15339 1917] on)")
	code, stdout, stderr = ask("--prompt", "hello world", "--policy", "kv_aware")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "2 tokens (of the tokenizer")
	code, stdout, _ = ask("--prompt", "not UTF-8: \xFD")
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "failed: tokenize: the prompt is a batch, or not UTF-8")

	config = file(t, "bad.yaml", "tokenizer: {from: /nowhere/tokenizer.json}")
	code, _, stderr = ask("--prompt", "x")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "tokenizer.from: stat /nowhere/tokenizer.json")
}

// The fields that only a channel reads are checked too.
func TestExplainChecksTheConfig(t *testing.T) {
	for config, want := range map[string]string{
		`kv_events: "udp://h:1"`:                        "kv_events",
		`dialects: [{methods: [/a.B/C], session: "0"}]`: "dialects",
		`policy: {kv_aware: {typo: 1}}`:                 "typo",
	} {
		code, _, stderr := command(t, "explain", "--replicas", "a,b", "--prompt", "x", "--config", file(t, "config.yaml", config))
		require.Equal(t, exitUsage, code, config)
		require.Contains(t, stderr, want)
	}
}
