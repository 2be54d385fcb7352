package router_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/internal/router"
)

// Issue 12.25: one line has the policy, its settings that differ from defaults, the session keys and the mode.
func TestDescribe(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: `policy=kv_aware session_keys="[session_id x-session-id]" mode=broadcast settings={}`,
		`{"policy": {"consistent_hash": {"num_virtual_nodes": 50}}, "session_keys": ["user"], "max_attempts": 3, "max_ongoing_requests": 8, "mode": "central"}`: `policy=consistent_hash session_keys=[user] mode=central settings="{\"max_ongoing_requests\":8,\"policy\":{\"consistent_hash\":{\"num_virtual_nodes\":50}}}"`,
		`{"policy": {"consistent_hash": {}}, "percentage": "off"}`: `policy=round_robin session_keys="[session_id x-session-id]" mode=broadcast settings="{\"percentage\":\"off\"}"`,
	} {
		c, err := policy.ParseConfig([]byte(text))
		require.NoError(t, err)
		var line bytes.Buffer
		log := slog.New(slog.NewTextHandler(&line, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
				return slog.Attr{}
			}
			return a
		}}))
		log.LogAttrs(t.Context(), slog.LevelInfo, "", router.Describe(*c)...)
		require.Equal(t, want+"\n", line.String(), text)
	}
}
