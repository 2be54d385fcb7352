package grpcserver

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/lab/enginesim/kvtransfer"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// A prefill leg gets what the decode engine keeps of the last turn, once, and computes the rest. The engine does
// not compare it with the prompt: the output is wrong where they differ.
func TestTurns(t *testing.T) {
	for name, changed := range map[string]bool{"next": false, "of another conversation": true} {
		t.Run(name, func(t *testing.T) {
			p, d, toP, toD := legs(t, NIXL, func(c *Disaggregation) { c.Keep = time.Hour })
			prompt := tokens(0, 100)
			first := generate(t.Context(), toP, with(engineRequest("one", prompt, 1, false), nixlPrefill))
			got := generate(t.Context(), toD,
				with(engineRequest("one", prompt, 80, true), first.complete.GetKvTransferParamsJson()))
			require.NoError(t, got.err)
			for _, c := range got.chunks {
				prompt = append(prompt, c.TokenIds...)
			}
			require.Len(t, prompt, 180)
			require.Equal(t, kvtransfer.Stats{Held: 1}, d.Stats().KV)
			require.Equal(t, 192, d.Stats().Load.UsedTokens, "of 179 tokens")
			kept := got.complete.GetKvTransferParamsJson()
			require.Contains(t, kept, `"do_remote_prefill": false, "do_remote_decode": true`)
			require.Contains(t, kept, `"remote_num_tokens": 179`)

			prompt = append(prompt, tokens(5000, 20)...)
			if changed {
				prompt = slices.Clone(prompt)
				prompt[150]++
			}
			computed := p.Stats().Engine.ComputedTokens
			second := generate(t.Context(), toP, with(engineRequest("two", prompt, 1, false), kept))
			require.NoError(t, second.err)
			free(t, d)
			require.Equal(t, kvtransfer.Stats{Pulled: 1}, d.Stats().KV)
			require.Equal(t, 179-96, p.Stats().Engine.ReceivedTokens, "96 are in its own cache")
			require.Equal(t, 200-179, p.Stats().Engine.ComputedTokens-computed)
			got = generate(t.Context(), toD,
				with(engineRequest("two", prompt, 4, true), second.complete.GetKvTransferParamsJson()))
			require.NoError(t, got.err)
			require.Equal(t, changed, got.chunks[0].TokenIds[0] != workload.Token(workload.OutputSeed("two"), 0))

			again := generate(t.Context(), toP, with(engineRequest("three", prompt, 1, false), kept))
			require.Equal(t, codes.Internal, status.Code(again.err), "it is gone")
		})
	}
}

// Few tokens are computed instead of awaited, and then the kept KV is freed; else it is freed after its time.
func TestTurnsThatAreNotPulled(t *testing.T) {
	p, d, toP, toD := legs(t, NIXL, func(c *Disaggregation) { c.Keep = time.Hour })
	turn := func(id string, output uint32) (prompt []uint32, kept string) {
		prompt = tokens(0, 100)
		first := generate(t.Context(), toP, with(engineRequest(id, prompt, 1, false), nixlPrefill))
		got := generate(t.Context(), toD,
			with(engineRequest(id, prompt, output, false), first.complete.GetKvTransferParamsJson()))
		require.NoError(t, got.err)
		return append(prompt, got.complete.OutputIds...), got.complete.GetKvTransferParamsJson()
	}
	prompt, kept := turn("one", 8)
	require.NoError(t, generate(t.Context(), toP, with(engineRequest("two", append(prompt, 1), 1, false), kept)).err)
	free(t, d)
	require.Zero(t, p.Stats().Engine.ReceivedTokens)

	_, d, toP, toD = legs(t, NIXL, func(c *Disaggregation) { c.Keep = time.Nanosecond })
	_, kept = turn("one", 80)
	require.NotEmpty(t, kept)
	free(t, d)
	require.Equal(t, kvtransfer.Stats{Expired: 1}, d.Stats().KV)
	_, d, toP, toD = legs(t, NIXL, nil)
	_, kept = turn("one", 80)
	require.Empty(t, kept, "it is not configured")
	free(t, d)
}
