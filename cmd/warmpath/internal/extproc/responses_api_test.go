package extproc_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
)

// A request that goes on with a response, reads or cancels it, goes to the replica that holds the response, since no
// other replica has it.
func TestResponsesAreFollowed(t *testing.T) {
	for name, c := range map[string]struct{ content, body string }{
		"json": {"application/json", `{"id":"%s","object":"response","output":[{"id":"msg_1"}],"status":"completed"}`},
		"events": {"text/event-stream", "event: response.created\n" +
			`data: {"type":"response.created","sequence_number":0,"response":{"object":"response","id":"%s","output":[]}}` + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPicker(t, fleet, extproc.Options{}, nil)
			path := func(path string) map[string]string { return chatHeaders(":path", path) }
			ask := func(h map[string]string, body, id string) string {
				g := p.open(t, duplex)
				g.headers(h, nil, body == "")
				if body != "" {
					g.body(body, true)
				}
				at := g.picked()[0]
				if body != "" {
					g.echoed(body, true)
				}
				g.responds("200", c.content, "", false)
				answer := fmt.Sprintf(c.body, id)
				for rest := answer; rest != ""; {
					n := min(23, len(rest))
					g.chunk(rest[:n], n == len(rest))
					rest = rest[n:]
				}
				g.done()
				p.idle(t)
				return at
			}
			used := make(map[string]bool)
			for i := range 30 {
				id := func(turn int) string { return fmt.Sprintf("resp_%d_%d", i, turn) }
				home := ask(path("/v1/responses"), fmt.Sprintf(`{"model":"m","input":"question %d","user":"u"}`, i), id(0))
				used[home] = true
				for turn := range 2 {
					body := fmt.Sprintf(`{"model":"m","input":"go on","user":"u","previous_response_id":"%s"}`, id(turn))
					require.Equal(t, home, ask(path("/v1/responses"), body, id(turn+1)), "conversation %d", i)
				}
				require.Equal(t, home, ask(path("/v1/responses/"+id(1)), "", "read"))
				require.Equal(t, home, ask(path("/v1/responses/"+id(1)+"/cancel?x=/responses/y"), "", "cancelled"))
			}
			require.Greater(t, len(used), 1)

			// A response that is not known, and one whose replica may not be used, are routed as others.
			ask(path("/v1/responses"), `{"input":"x","previous_response_id":"resp_unknown"}`, "other")
			home := ask(path("/v1/responses"), `{"input":"x"}`, "resp_moves")
			var others []any
			for at := range used {
				if at != home {
					others = append(others, at)
				}
			}
			g := p.open(t, duplex)
			body := `{"input":"y","previous_response_id":"resp_moves"}`
			g.headers(path("/v1/responses"), others, false)
			g.body(body, true)
			require.NotEqual(t, home, g.picked()[0])
			g.echoed(body, true)
			g.responds("200", "text/plain", "", true)
			g.done()
		})
	}
}
