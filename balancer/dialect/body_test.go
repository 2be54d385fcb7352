package dialect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/routing"
)

func TestReadBody(t *testing.T) {
	for body, want := range map[string]struct {
		q     routing.Request
		whole bool
		err   error
	}{
		`{"model":"base:lora","user":"u"}`:       {routing.Request{Model: "base:lora", Session: "u"}, true, nil},
		`{"model":null}`:                         {routing.Request{}, true, nil},
		`{"model":17,"user":"u"}`:                {routing.Request{}, true, ErrModel},
		`{"model":["a"]}`:                        {routing.Request{}, true, ErrModel},
		`{"model":17,"model":"last"}`:            {routing.Request{Model: "last"}, true, nil},
		`{"model":1`:                             {routing.Request{}, false, nil},
		`{"model":"m","user":"u"`:                {routing.Request{Model: "m", Session: "u"}, false, nil},
		`[1,2,3]`:                                {routing.Request{}, false, nil},
		`{"messages":[],"prompt":"","input":{}}`: {routing.Request{}, true, nil},
		``:                                       {routing.Request{}, false, nil},
		`hello`:                                  {routing.Request{}, false, nil},
	} {
		var q routing.Request
		whole, err := ReadBody(&q, []byte(body))
		require.Equal(t, want.q, q, body)
		require.Equal(t, want.whole, whole, body)
		require.Equal(t, want.err, err, body)
	}
	q := routing.Request{Session: "header", ID: "id"}
	_, err := ReadBody(&q, []byte(`{"session_id":"body","request_id":"other","messages":[{"role":"user","content":"hi`))
	require.NoError(t, err)
	require.Equal(t, "header", q.Session)
	require.Equal(t, "id", q.ID)
	require.True(t, strings.HasSuffix(q.Prompt.Text, "hi"))
}
