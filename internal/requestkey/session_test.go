package requestkey

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

func xxh128(s string) []byte {
	sum := xxh3.HashString128(s).Bytes()
	return sum[:]
}

// The keys that agents send next to their session.
func TestAgentKeys(t *testing.T) {
	const code, dynamo = "x-claude-code-session-id", "x-dynamo-session-id"
	for name, tt := range map[string]struct {
		headers         []string
		session, parent string
		final           bool
	}{
		"Claude Code":                     {[]string{code, "s"}, "s", "", false},
		"Claude Code, an agent":           {[]string{code, "s", "x-claude-code-agent-id", "a"}, "s/a", "s", false},
		"Claude Code, an agent of one":    {[]string{code, "s", "x-claude-code-agent-id", "b", "x-claude-code-parent-agent-id", "a"}, "s/b", "s", false},
		"Codex":                           {[]string{"thread-id", "t"}, "t", "", false},
		"OpenCode":                        {[]string{"x-session-id", "o"}, "o", "", false},
		"Dynamo":                          {[]string{dynamo, "d"}, "d", "", false},
		"Dynamo, a child":                 {[]string{dynamo, "d", "x-dynamo-parent-session-id", "p"}, "p/d", "p", false},
		"Dynamo, the last":                {[]string{dynamo, "d", "x-dynamo-session-final", "true"}, "d", "", true},
		"Dynamo, the last in another way": {[]string{dynamo, "d", "x-dynamo-session-final", "1"}, "d", "", true},
		"Dynamo, not the last":            {[]string{dynamo, "d", "x-dynamo-session-final", "false"}, "d", "", false},
		"ours before an agent's":          {[]string{"session_id", "s", dynamo, "d", "x-dynamo-parent-session-id", "p"}, "s", "", false},
		"an agent without session":        {[]string{"x-claude-code-agent-id", "a"}, "", "", false},
		"a parent without child":          {[]string{"x-dynamo-parent-session-id", "p", "x-dynamo-session-final", "true"}, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			keys := NewSessionKeys()
			md := metadata.Pairs(tt.headers...)
			var q, in policy.Request
			ctx := metadata.NewOutgoingContext(context.Background(), md)
			if q.Session = keys.Outgoing(ctx); q.Session == "" {
				keys.Agent(ctx, &q)
			}
			keys.In(md.Get, &in)
			for _, q := range []*policy.Request{&q, &in} {
				require.Equal(t, tt.session, q.Session)
				require.Equal(t, tt.parent, q.Parent())
				require.Equal(t, tt.final, part.OfRequest(q).Final)
			}
		})
	}
}

func TestSessionKeys(t *testing.T) {
	long := strings.Repeat("x", MaxSession)
	for _, tt := range []struct {
		name string
		keys []string
		md   []string
		want string
	}{
		{"default", nil, []string{"session_id", "s"}, "s"},
		{"other separator", nil, []string{"session-id", "s"}, "s"},
		{"second", nil, []string{"x-session-id", "s"}, "s"},
		{"first name wins", nil, []string{"x-session-id", "b", "session_id", "a"}, "a"},
		{"empty is absent", nil, []string{"session_id", "", "x-session-id", "b"}, "b"},
		{"first value", nil, []string{"session_id", "a", "session_id", "b"}, "a"},
		{"no request id", nil, []string{"x-request-id", "r", "request-id", "r", "x-correlation-id", "r"}, ""},
		{"request id if configured", []string{"X-Request-ID"}, []string{"x-request-id", "r"}, "r"},
		{"configured", []string{"X_Claude_Code_Session_Id"}, []string{"x-claude-code-session-id", "s", "session_id", "no"}, "s"},
		{"many separators, absent", []string{"x-claude-code-session-id", "b"}, []string{"b", "s"}, "s"},
		{"not a prefix", nil, []string{"session_id2", "s", "my-session_id", "s"}, ""},
		{"as long as may be", nil, []string{"session_id", long}, long},
		{"longer", nil, []string{"session_id", long + "x"}, state.SessionKey(long + "x")},
		{"longer than a key", nil, []string{"session_id", long[:300]}, long[:300]},
		{"none", nil, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			keys := NewSessionKeys(tt.keys...)
			md := metadata.Pairs(tt.md...)
			require.Equal(t, tt.want, keys.Outgoing(metadata.NewOutgoingContext(context.Background(), md)))
			require.Equal(t, tt.want, keys.Outgoing(metadata.AppendToOutgoingContext(context.Background(), tt.md...)))
			upper := metadata.MD{}
			for k, v := range md {
				upper[strings.ToUpper(k)] = v
			}
			require.Equal(t, tt.want, keys.Outgoing(metadata.NewOutgoingContext(context.Background(), upper)), "case")
		})
	}
	keys := NewSessionKeys()
	require.Empty(t, keys.Outgoing(context.Background()))
}

func TestSessionKeyHash(t *testing.T) {
	a, b := strings.Repeat("x", 300)+"a", strings.Repeat("x", 300)+"b"
	require.Len(t, state.SessionKey(a), 32)
	require.NotEqual(t, state.SessionKey(a), state.SessionKey(b))
	require.Equal(t, hash128(a), state.SessionKey(a))
}

func TestRequestID(t *testing.T) {
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-correlation-id", "c")
	require.Equal(t, "c", RequestID(ctx))
	require.Equal(t, "b", RequestID(metadata.AppendToOutgoingContext(ctx, "request-id", "b")))
	require.Equal(t, "a", RequestID(metadata.AppendToOutgoingContext(ctx, "request-id", "b", "X-Request-Id", "a")))
	require.Empty(t, RequestID(context.Background()))
}
