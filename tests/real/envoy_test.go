package real

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/freeport"
)

// startEnvoy runs Envoy with the example's configuration in front of the engines' OpenAI API until the test ends, with
// an endpoint picker of its own. It returns Envoy's address.
func startEnvoy(t *testing.T, engines []*engine) string {
	t.Helper()
	var addresses []string
	for _, e := range engines {
		addresses = append(addresses, e.web)
	}
	ports := freeport.Find(2)
	addr, picker := fmt.Sprint("127.0.0.1:", ports[0]), fmt.Sprint("127.0.0.1:", ports[1])
	serveAt(t, addresses, []string{"--ext-proc", picker, "--ext-proc-fallbacks", "1"})
	config, err := os.ReadFile("../../examples/envoy/envoy.yaml")
	require.NoError(t, err)
	changes := []string{"port_value: 8080", fmt.Sprint("port_value: ", ports[0]), "port_value: 9002", fmt.Sprint("port_value: ", ports[1])}
	for i := range 3 {
		_, port, _ := strings.Cut(addresses[i%len(addresses)], ":")
		changes = append(changes, fmt.Sprint("port_value: 800", i), "port_value: "+port)
	}
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.NewReplacer(changes...).Replace(string(config))), 0o600))
	background(t, exec.Command(requireEngines(t).program("envoy"), "--config-path", path, "--concurrency", "1",
		"--disable-hot-restart", "--log-level", "warning"))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	require.Eventually(t, func() bool {
		a, err := http.Get("http://" + addr + "/v1/models")
		return err == nil && a.Body.Close() == nil && a.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	return addr
}

// chat has a chat of OpenAI's API answered by the server at an address.
func chat(t *testing.T, addr, text string, stream bool) (body string, header http.Header) {
	t.Helper()
	q, err := json.Marshal(map[string]any{"model": "tiny", "temperature": 0, "max_tokens": 8, "stream": stream,
		"messages": []any{map[string]any{"role": "user", "content": text}}})
	require.NoError(t, err)
	a, err := http.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader(string(q)))
	require.NoError(t, err)
	defer a.Body.Close()
	all, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.StatusCode, string(all))
	return string(all), a.Header
}

// content is the text that an unstreamed chat answers.
func content(t *testing.T, body string) string {
	t.Helper()
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
	}
	require.NoError(t, json.Unmarshal([]byte(body), &answer), body)
	require.Len(t, answer.Choices, 1)
	return answer.Choices[0].Message.Content
}

// behindEnvoy repeats chats through Envoy: they go to the engine that has them cached, and the answers are those of an
// engine that is asked directly, at once and as events. hits counts the tokens that the engines have found cached.
func behindEnvoy(t *testing.T, engines []*engine, hits func() float64) {
	envoy := startEnvoy(t, engines)
	before, least := hits(), 0
	used := make(map[string]bool)
	answers := make(map[string]string)
	for i := range 12 {
		text := strings.Repeat(fmt.Sprint("What is in document ", i, "? "), 20)
		first, header := chat(t, envoy, text, false)
		replica := header.Get("X-Warmpath-Replica")
		used[replica] = true
		answers[text] = content(t, first)
		again, header := chat(t, envoy, text, false)
		require.Equal(t, answers[text], content(t, again))
		require.Equal(t, []string{replica, "prefix_match"}, []string{header.Get("X-Warmpath-Replica"), header.Get("X-Warmpath-Reason")})
		events, header := chat(t, envoy, text, true)
		require.Equal(t, replica, header.Get("X-Warmpath-Replica"))
		require.Greater(t, strings.Count(events, "data: "), 2, events)
		require.True(t, strings.HasSuffix(strings.TrimSpace(events), "data: [DONE]"), events)
		least += 2 * 2 * blockTokens
	}
	require.Len(t, used, len(engines))
	require.Eventually(t, func() bool { return hits()-before >= float64(least) }, time.Minute, 100*time.Millisecond)
	t.Logf("%v tokens were found cached", hits()-before)
	for text, want := range answers {
		body, _ := chat(t, engines[0].web, text, false)
		require.Equal(t, want, content(t, body))
	}
}
