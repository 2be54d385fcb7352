package requestkey

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestReadBody(t *testing.T) {
	for body, want := range map[string]struct {
		q     policy.Request
		whole bool
		err   error
	}{
		`{"model":"base:lora","user":"u"}`:       {policy.Request{Model: "base:lora", Session: "u"}, true, nil},
		`{"model":null}`:                         {policy.Request{}, true, nil},
		`{"model":17,"user":"u"}`:                {policy.Request{}, true, ErrModel},
		`{"model":["a"]}`:                        {policy.Request{}, true, ErrModel},
		`{"model":17,"model":"last"}`:            {policy.Request{Model: "last"}, true, nil},
		`{"model":1`:                             {policy.Request{}, false, nil},
		`{"model":"m","user":"u"`:                {policy.Request{Model: "m", Session: "u"}, false, nil},
		`[1,2,3]`:                                {policy.Request{}, false, nil},
		`{"messages":[],"prompt":"","input":{}}`: {policy.Request{}, true, nil},
		``:                                       {policy.Request{}, false, nil},
		`hello`:                                  {policy.Request{}, false, nil},
	} {
		var q policy.Request
		whole, err := ReadBody(&q, []byte(body))
		require.Equal(t, want.q, q, body)
		require.Equal(t, want.whole, whole, body)
		require.Equal(t, want.err, err, body)
	}
	q := policy.Request{Session: "header", ID: "id"}
	_, err := ReadBody(&q, []byte(`{"session_id":"body","request_id":"other","messages":[{"role":"user","content":"hi`))
	require.NoError(t, err)
	require.Equal(t, "header", q.Session)
	require.Equal(t, "id", q.ID)
	require.True(t, strings.HasSuffix(q.Prompt.Text, "hi"))
}
