package telemetry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// The shadow policy's decision is recorded next to the real one.
func TestShadowAttributes(t *testing.T) {
	c, err := policy.ParseConfig([]byte(`{"policy":{"round_robin":{}},"shadow_policy":{"kv_aware":{}}}`))
	require.NoError(t, err)
	r, err := router.FromConfig(c, nil)
	require.NoError(t, err)
	defer r.Close()
	r.Fleet.Set([]router.Member{{Attributes: policy.Attributes{ID: "a"}}, {Attributes: policy.Attributes{ID: "b"}}})
	r.Fleet.Connect()
	decide := func() map[attribute.Key]attribute.Value {
		q := new(policy.Request)
		q.SetPrompt(policy.Prompt{Tokens: make([]uint32, 160)})
		var b router.Reservation
		require.NoError(t, r.Reserve(t.Context(), q, &b, router.How{NoWait: true}))
		b.Release()
		all := make(map[attribute.Key]attribute.Value)
		for _, kv := range telemetry.Attributes("round_robin", q, &b.Decision) {
			all[kv.Key] = kv.Value
		}
		return all
	}
	first := decide()
	second := decide()
	require.Equal(t, "kv_aware", second[telemetry.KeyShadowPolicy].AsString())
	require.Equal(t, first[telemetry.KeyReplica].AsString(), second[telemetry.KeyShadowReplica].AsString(), "where the prompt went before")
	require.True(t, second[telemetry.KeyShadowDiffers].AsBool())
	require.EqualValues(t, 160, second[telemetry.KeyShadowMatchedTokens].AsInt64())
	require.Equal(t, "prefix_match", second[telemetry.KeyShadowReason].AsString())
	third := decide()
	require.EqualValues(t, third[telemetry.KeyShadowReplica].AsString() != third[telemetry.KeyReplica].AsString(), third[telemetry.KeyShadowDiffers].AsBool())

	to := policy.To(r.View().Replicas()[0], "y")
	plain := telemetry.Attributes("x", new(policy.Request), &to)
	for _, kv := range plain {
		require.NotContains(t, string(kv.Key), "shadow")
	}
}
