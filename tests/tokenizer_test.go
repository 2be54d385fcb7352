package tests

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

// A channel with a tokenizer: the policy sees tokens, and a prompt has its true length. If the tokenizer fails, the
// call proceeds without it.
func TestATokenizerInAChannel(t *testing.T) {
	var asked atomic.Int32
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"tokens":[1,2,3,4,5,6,7]}`))
	}))
	defer engine.Close()
	rs := replicas(t, 3)
	m := newMeter(t)
	var log logged
	cc := dial(t, target(rs...), m.option, client.WithLogger(log.logger()),
		client.WithConfig(config(`{"kv_aware":{}}`, `"tokenizer":{"from":"`+engine.URL+`"},"prepare_timeout":"20s"`)))
	connected(t, cc, rs)
	ask := func(text string) client.Decision {
		var d client.Decision
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), simple(text))
		require.NoError(t, err)
		return d
	}
	first := ask("a prompt")
	require.Equal(t, 7, first.PromptTokens)
	again := ask("a prompt")
	require.Equal(t, first.Replica, again.Replica)
	require.Equal(t, 7, again.PromptTokens)
	require.EqualValues(t, 1, asked.Load())
	require.Zero(t, m.sum(t, "warmpath.tokenize.errors"))

	for i := range 3 {
		require.Equal(t, 4, ask(strings.Repeat("x", 15)).PromptTokens)
		require.EqualValues(t, i+1, m.sum(t, "warmpath.tokenize.errors"))
	}
	require.Equal(t, 1, strings.Count(log.String(), "routed by their text"), log.String())
	require.NotContains(t, log.String(), "xxx")
}

// Vocabularies and templates are linked only by programs that import them.
func TestTokenizersAreLinkedByChoice(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/client", module+"/resolver", module+"/internal/balancer").Output()
	require.NoError(t, err)
	for _, heavy := range []string{module + "/tokenizers", "tiktoken-go", "regexp2"} {
		require.NotContains(t, string(out), heavy)
	}
}
