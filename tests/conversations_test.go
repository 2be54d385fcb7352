package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

// tokenizing is an engine's endpoint: a token for each byte. It refuses calls of tools, and everything while it is down.
func tokenizing(t testing.TB) (url string, down *atomic.Bool) {
	down = new(atomic.Bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Prompt   string
			Messages []map[string]any
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		text := q.Prompt
		for _, m := range q.Messages {
			if m["tool_calls"] != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			text += fmt.Sprintf("<%v>%v", m["role"], m["content"])
		}
		var tokens []int
		for _, b := range []byte(text) {
			tokens = append(tokens, int(b))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
	}))
	t.Cleanup(s.Close)
	return s.URL, down
}

// A turn that cannot be tokenized does not move its conversation, and neither does the one after it.
func TestATurnWithoutTokensMovesNoConversation(t *testing.T) {
	const (
		conversations = 30
		turns         = 5
		template      = `{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if 'forbidden' in m.content %}{{ raise_exception('no') }}{% endif %}{% endfor %}`
		image         = `{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"https://x/%d"}}]}`
		call          = `{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"n\":%d}"}}]},{"role":"tool","tool_call_id":"c","content":"42"}`
		forbidden     = `{"role":"user","content":"forbidden %d"}`
	)
	for _, c := range []struct {
		name     string
		template bool
		odd      string // the message of a turn
		at       int    // that turn
		down     int    // the turn in which the endpoint is down
	}{
		{name: "control"},
		{name: "control, template", template: true},
		{name: "image", odd: image, at: 3},
		{name: "image, template", template: true, odd: image, at: 3},
		{name: "image at once", odd: image, at: 1},
		{name: "call of a tool", odd: call, at: 3},
		{name: "call of a tool, template", template: true, odd: call, at: 3},
		{name: "template fails", template: true, odd: forbidden, at: 2},
		{name: "template fails at once", template: true, odd: forbidden, at: 1},
		{name: "down", down: 3},
		{name: "down, template", template: true, down: 3},
		{name: "down at once", down: 1},
		{name: "down at once, template", template: true, down: 1},
		{name: "down after an image", odd: image, at: 2, down: 3},
		{name: "image while it is down", template: true, odd: image, at: 3, down: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, down := tokenizing(t)
			tokenizer := fmt.Sprintf(`{"from":%q`, url)
			if c.template {
				tokenizer += fmt.Sprintf(`,"chat_template":%q`, writeTemplate(t, template))
			}
			rs := replicas(t, 5)
			m := newMeter(t)
			cc := dial(t, target(rs...), m.option, client.WithConfig(fmt.Sprintf(
				`{"policy":{"kv_aware":{}},%s,"tokenizer":%s},"prepare_timeout":"20s"}`, chatDialects, tokenizer)))
			connected(t, cc, rs)
			ask := func(turns ...string) client.Decision {
				var d client.Decision
				_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), chatOf(turns...))
				require.NoError(t, err)
				return d
			}
			said := make([][]string, conversations)
			at := make([]string, conversations)
			moved, tries := 0, 0
			for i := 1; i <= turns; i++ {
				down.Store(c.down == i)
				if c.down == i-1 && i > 1 { // it is left alone for a while
					eventually(t, "the endpoint is asked again", func() bool {
						before := m.sum(t, "warmpath.tokenize.errors")
						tries++
						ask(turn("user", fmt.Sprint("are you there? ", tries)))
						return m.sum(t, "warmpath.tokenize.errors") == before
					})
				}
				for n := range conversations {
					if i == 1 {
						said[n] = append(said[n], turn("system", strings.Repeat("Be brief. ", 40)))
					}
					if c.odd != "" && i == c.at {
						said[n] = append(said[n], fmt.Sprintf(c.odd, n))
					}
					said[n] = append(said[n], turn("user", strings.Repeat(fmt.Sprintf("question %d of conversation %d; ", i, n), 8)))
					d := ask(said[n]...)
					if i > 1 && at[n] != d.Replica {
						moved++
					}
					at[n] = d.Replica
					said[n] = append(said[n], turn("assistant", strings.Repeat(fmt.Sprintf("answer %d to %d; ", i, n), 8)))
				}
			}
			require.Zero(t, moved)
			if c.odd == "" && c.down == 0 {
				require.Zero(t, m.sum(t, "warmpath.tokenize.errors"))
			} else {
				require.GreaterOrEqual(t, m.sum(t, "warmpath.tokenize.errors"), int64(conversations))
			}
		})
	}
}
