package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// everyMode are the modes that Envoy takes for the picker's protocol.
func everyMode() (all []modes) {
	for _, original := range []bool{false, true} {
		for _, request := range []string{"FULL_DUPLEX_STREAMED", "BUFFERED"} {
			all = append(all,
				modes{original: original, request: request, response: "FULL_DUPLEX_STREAMED"},
				modes{original: original, request: request, response: "STREAMED"},
				modes{original: original, request: request, response: "NONE"},
				modes{original: original, request: request, response: "NONE", headers: "SKIP"})
		}
	}
	return all
}

// shown reports whether the picker sees the end of a response.
func (m modes) shown() bool { return m.response != "NONE" }

// held reports whether a request counts as load exactly as long as it is under way.
func (m modes) held() bool { return m.shown() || m.request == "BUFFERED" }

// Requests reach the picked replica and come back, byte for byte, in each mode of each kind of cluster. They are load
// while they are under way.
func TestModes(t *testing.T) {
	for _, m := range everyMode() {
		t.Run(m.String(), func(t *testing.T) {
			engines := startEngines(t)
			p := startPicker(t, engines, "", "--ext-proc-fallbacks", map[bool]string{false: "2", true: "0"}[m.original])
			e := startEnvoy(t, p, engines, m)

			finish := pending(t, e, engines)
			eventually(t, func() bool { return p.ongoing() == 1 }, "a request under way is load")
			finish()
			if m.held() {
				p.idle()
			}
			answer(engines, nil)
			sticks(t, e)
			long(t, e, engines)
			events(t, e, engines)
			if m.held() {
				p.idle()
			}
		})
	}
}

// sticks sends prompts, each several times: always to the same engine.
func sticks(t *testing.T, e *envoy) {
	t.Helper()
	used := make(map[string]bool)
	replica := func(o outcome) string { return fmt.Sprintf(`{"engine":%q,`, o.header.Get("X-Warmpath-Replica")) }
	for n := range 8 {
		text := chat(fmt.Sprint("prompt ", n, strings.Repeat(" and so on", 300)))
		first := e.do(http.MethodPost, completions, text)
		require.Equal(t, http.StatusOK, first.code, first.body)
		require.Contains(t, first.body, fmt.Sprintf(`"length":%d`, len(text)))
		for range 2 {
			again := e.do(http.MethodPost, completions, text)
			require.Equal(t, first.body, again.body)
			require.Equal(t, "prefix_match", again.header.Get("X-Warmpath-Reason"))
			require.True(t, strings.HasPrefix(again.body, replica(again)), "%s %s", again.body, replica(again))
		}
		used[first.body] = true
	}
	require.Greater(t, len(used), 1)
	require.Equal(t, http.StatusOK, e.do(http.MethodGet, "/v1/models", "").code)
}

// long sends bodies of 1 and 8 MB, and gets as much back.
func long(t *testing.T, e *envoy, engines []*engine) {
	t.Helper()
	for _, size := range []int{1 << 20, 8 << 20} {
		var text strings.Builder
		for text.Len() < size {
			fmt.Fprintf(&text, "line %d of a long document. ", text.Len())
		}
		body := chat(text.String())
		answer(engines, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			all, _ := io.ReadAll(r.Body)
			_, _ = w.Write(all)
		})
		got := e.do(http.MethodPost, completions, body)
		require.Equal(t, http.StatusOK, got.code)
		require.True(t, body == got.body, "%d of %d bytes came back", len(got.body), len(body))
	}
}

// events receives server-sent events one by one: the engine writes each after the client has received the one before.
func events(t *testing.T, e *envoy, engines []*engine) {
	t.Helper()
	const count = 50
	received := make(chan struct{}, count)
	answer(engines, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range count {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-received:
			case <-r.Context().Done():
				return
			}
		}
	})
	a := e.open(http.MethodPost, completions, strings.NewReader(chat("events")))
	defer a.Body.Close()
	n := 0
	for lines := bufio.NewScanner(a.Body); lines.Scan(); {
		if lines.Text() == "" {
			continue
		}
		require.Equal(t, fmt.Sprint("data: ", n), lines.Text())
		n++
		received <- struct{}{}
	}
	require.Equal(t, count, n)
}

// pending begins a request that ends when finish is called, which waits for its response.
func pending(t *testing.T, e *envoy, engines []*engine) (finish func()) {
	t.Helper()
	arrived, end := make(chan struct{}, 1), make(chan struct{})
	answer(engines, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"begun":true`)
		_ = http.NewResponseController(w).Flush()
		arrived <- struct{}{}
		select {
		case <-end:
			_, _ = io.WriteString(w, `}`)
		case <-r.Context().Done():
		}
	})
	a := e.open(http.MethodPost, completions, strings.NewReader(chat("pending")))
	<-arrived
	return sync.OnceFunc(func() {
		close(end)
		body, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		require.JSONEq(t, `{"begun":true}`, string(body))
		require.NoError(t, a.Body.Close())
	})
}
