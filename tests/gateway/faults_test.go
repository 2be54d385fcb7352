package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// More requests than the replicas may have are refused, whatever the gateway shows of the responses.
func TestBound(t *testing.T) {
	for _, m := range []modes{
		{}, {response: "STREAMED"}, {response: "NONE"}, {response: "NONE", headers: "SKIP"},
		{request: "BUFFERED", response: "NONE"}, {request: "BUFFERED", response: "NONE", headers: "SKIP"},
	} {
		t.Run(m.String(), func(t *testing.T) {
			engines := startEngines(t)
			p := startPicker(t, engines, "    max_ongoing_requests: 2")
			e := startEnvoy(t, p, engines, m)
			arrived, end := make(chan struct{}, 12), make(chan struct{})
			answer(engines, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				arrived <- struct{}{}
				select {
				case <-end:
				case <-r.Context().Done():
				}
			})
			var all sync.WaitGroup
			refused := make(chan outcome, 12)
			for n := range 12 {
				all.Go(func() {
					if o := e.do(http.MethodPost, completions, chat(fmt.Sprint("prompt ", n))); o.code != http.StatusOK {
						refused <- o
						arrived <- struct{}{}
					}
				})
			}
			for range 12 {
				<-arrived
			}
			close(end)
			all.Wait()
			require.Len(t, refused, 6, "three replicas with two requests each take six")
			for range 6 {
				o := <-refused
				require.Equal(t, http.StatusTooManyRequests, o.code)
				require.Contains(t, o.body, `"type":"rate_limit_error"`)
				require.Contains(t, o.body, `"code":"full"`)
				require.NotEmpty(t, o.header.Get("Retry-After"))
			}
		})
	}
}

// When a replica is gone, Envoy tries the pick's fallbacks, and no request fails. The picker learns of it.
func TestReplicaGone(t *testing.T) {
	engines := startEngines(t)
	p := startPicker(t, engines, "", "--ext-proc-fallbacks", "2")
	e := startEnvoy(t, p, engines, modes{})
	sticks(t, e)
	engines[0].CloseClientConnections()
	engines[0].Close()
	for n := range 60 {
		o := e.do(http.MethodPost, completions, chat(fmt.Sprint("other prompt ", n)))
		require.Equal(t, http.StatusOK, o.code, o.body)
		require.NotContains(t, o.body, `"engine":"r0"`)
	}
	p.idle()
	require.Equal(t, "ejected", p.deployment().GetReplicas()[0].GetState())
}

// What a request meets whose picker is away: Envoy can go on if it still has the whole request.
func TestPickerAway(t *testing.T) {
	for _, c := range []struct {
		modes
		post, get int
	}{
		{modes{}, http.StatusInternalServerError, http.StatusInternalServerError},
		{modes{failOpen: true}, http.StatusInternalServerError, http.StatusOK},
		{modes{request: "BUFFERED", response: "STREAMED", failOpen: true}, http.StatusOK, http.StatusOK},
		{modes{request: "BUFFERED", response: "STREAMED"}, http.StatusInternalServerError, http.StatusInternalServerError},
	} {
		t.Run(fmt.Sprint(c.modes, c.failOpen), func(t *testing.T) {
			engines := startEngines(t)
			p := startPicker(t, engines, "")
			e := startEnvoy(t, p, engines, c.modes)
			p.kill()
			require.Equal(t, c.post, e.do(http.MethodPost, completions, chat("hello")).code)
			require.Equal(t, c.get, e.do(http.MethodGet, "/v1/models", "").code)
			p.begin()
			eventually(t, func() bool { return e.do(http.MethodPost, completions, chat("hello")).code == http.StatusOK })
			eventually(t, func() bool { return len(p.deployment().GetDecisions()) > 0 }, "the picker is asked again")
		})
	}
}

// A gateway that does not show the headers of requests gets an answer, although the pick comes too late for it.
func TestHeadersNotShown(t *testing.T) {
	for _, request := range []string{"FULL_DUPLEX_STREAMED", "BUFFERED"} {
		m := modes{skip: true, request: request, response: "STREAMED"}
		engines := startEngines(t)
		p := startPicker(t, engines, "")
		e := startEnvoy(t, p, engines, m)
		o := e.do(http.MethodPost, completions, chat("hello"))
		require.Equal(t, http.StatusOK, o.code, o.body)
		p.idle()
	}
}

// A buffered body may be longer than what gRPC takes by default.
func TestLongBufferedBody(t *testing.T) {
	engines := startEngines(t)
	p := startPicker(t, engines, "")
	e := startEnvoy(t, p, engines, modes{request: "BUFFERED"})
	body := chat(strings.Repeat("a long line. ", 30<<20/13))
	o := e.do(http.MethodPost, completions, body)
	require.Equal(t, http.StatusOK, o.code, o.body)
	require.Contains(t, o.body, fmt.Sprintf(`"length":%d`, len(body)))
}

// A request that names no model, and has no body, goes to a replica of any deployment.
func TestSeveralDeployments(t *testing.T) {
	engines := startEngines(t)
	p := startPickerOf(t, fmt.Sprintf(`deployments:
  chat: {models: [m], replicas: [{id: r0, address: %q}]}
  code: {models: [k], replicas: [{id: r1, address: %q}]}
`, engines[0].address(), engines[1].address()))
	e := startEnvoy(t, p, engines, modes{})
	require.Contains(t, e.do(http.MethodPost, completions, chat("hello")).body, `"engine":"r0"`)
	require.Contains(t, e.do(http.MethodPost, completions, strings.Replace(chat("hello"), `"m"`, `"k"`, 1)).body, `"engine":"r1"`)
	for _, path := range []string{"/v1/models", "/health"} {
		o := e.do(http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, o.code, o.body)
		require.NotContains(t, o.body, `"engine":"r2"`)
	}
	o := e.do(http.MethodPost, completions, `{"messages":[{"role":"user","content":"hello"}]}`)
	require.Equal(t, http.StatusBadRequest, o.code, "with a prompt the model decides")
	require.Contains(t, o.body, "chat")
}
