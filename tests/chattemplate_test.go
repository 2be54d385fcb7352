package tests

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
	_ "github.com/warmpath/warmpath/tokenizers" // chat_template
)

// chatDialects reads the body of a test call as an OpenAI request.
const chatDialects = `"dialects":[{"methods":["/grpc.testing.TestService/UnaryCall"],"json_body":"3.2"}]`

// chatOf returns a call with a chat.
func chatOf(turns ...string) *testpb.SimpleRequest {
	return simple(`{"model":"m","messages":[` + strings.Join(turns, ",") + `]}`)
}

func turn(role, content string) string { return fmt.Sprintf(`{"role":%q,"content":%q}`, role, content) }

// writeTemplate returns the path of a chat template.
func writeTemplate(t testing.TB, text string) string {
	path := filepath.Join(t.TempDir(), "chat_template.jinja")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// A chat template that would end or hold up the application, or whose text would not be that of Jinja2, is refused at
// dial. No template that dial accepts ends the application later.
func TestABadChatTemplateIsRefusedAtDial(t *testing.T) {
	for _, template := range []string{
		"{{ '%s %s' % messages[0].content }}", "{{ messages|length % 0 }}", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
		"{{ " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + " }}", "{% for i in range(5000000) %}{% endfor %}",
		"{% include 'other' %}", "{{ messages|groupby('role') }}", "{{ messages[0].content.encode() }}", "{{ raise_exception('never') }}",
	} {
		_, err := client.New("warmpath:///127.0.0.1:1", insecureOption(), client.WithConfig(
			fmt.Sprintf(`{"tokenizer":{"from":"http://127.0.0.1:1/tokenize","chat_template":%q}}`, writeTemplate(t, template))))
		require.ErrorContains(t, err, "tokenizer.chat_template", "%.100s", template)
	}
}

// A chat template that takes too long for one chat, or fails for it, costs the call its tokens: it is counted, and logged
// once for each kind without the prompt.
func TestAChatTemplateThatFailsCostsTheTokensOnly(t *testing.T) {
	var asked atomic.Int32
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"tokens":[1,2,3,4,5,6,7]}`))
	}))
	defer engine.Close()
	template := writeTemplate(t, `{% for m in messages %}{{ m.role }}{{ m.content }}
{% if m.content == 'long' %}{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}{% endif %}
{% if m.content == 'wrong' %}{{ 'secret' % m.content }}{% endif %}{% endfor %}`)
	rs := replicas(t, 2)
	m := newMeter(t)
	var log logged
	cc := dial(t, target(rs...), m.option, client.WithLogger(log.logger()), client.WithConfig(fmt.Sprintf(
		`{"policy":{"kv_aware":{}},%s,"tokenizer":{"from":%q,"chat_template":%q},"prepare_timeout":"1s"}`, chatDialects, engine.URL, template)))
	connected(t, cc, rs)
	ask := func(content string) client.Decision {
		var d client.Decision
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), chatOf(turn("user", content)))
		require.NoError(t, err)
		return d
	}
	require.Equal(t, 7, ask("short").PromptTokens)
	require.EqualValues(t, 1, asked.Load())
	for i := range 2 {
		require.NotEqual(t, 7, ask("long").PromptTokens)
		require.NotEqual(t, 7, ask("wrong").PromptTokens)
		require.EqualValues(t, 2*i+2, m.sum(t, "warmpath.tokenize.errors"))
	}
	require.EqualValues(t, 1, asked.Load())
	require.LessOrEqual(t, strings.Count(log.String(), "routed by their text"), 2, log.String())
	require.NotContains(t, log.String(), "wrong")
}
