package extproc_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// frame is a message in a gRPC body.
func frame(message []byte) string {
	return string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))
}

func field(b []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

func varint(b []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), value)
}

const generate = "/vllm.grpc.engine.VllmEngine/Generate"

func grpcHeaders() map[string]string {
	return map[string]string{":method": "POST", ":path": generate, "content-type": "application/grpc", "te": "trailers"}
}

// Usage comes from the body of the response, however it is chunked.
func TestUsage(t *testing.T) {
	filler := strings.Repeat(`{\"usage\":{\"prompt_tokens\":99}} `, 8000)
	grpcBody := frame(field(nil, 1, string(varint(nil, 2, 12)))) + frame(make([]byte, 10_000)) +
		frame(field(nil, 2, string(varint(varint(nil, 3, 12), 4, 34))))
	for name, c := range map[string]struct {
		content, body string
		more          []string
		want          [3]int // prompt, output, cached; -1 = none
	}{
		"completion":  {"application/json", `{"usage":{"prompt_tokens":12,"completion_tokens":34,"prompt_tokens_details":{"cached_tokens":8}}}`, nil, [3]int{12, 34, 8}},
		"responses":   {"application/json; charset=utf-8", `{"output":[],"usage":{"input_tokens":12,"output_tokens":34}}`, nil, [3]int{12, 34, -1}},
		"embedding":   {"application/json", `{"data":[{"embedding":[` + strings.Repeat("0.125,", 40_000) + `1]}],"usage":{"prompt_tokens":12}}`, nil, [3]int{12, -1, -1}},
		"long":        {"application/json", `{"choices":[{"text":"` + filler + `"}],"usage":{"prompt_tokens":12,"completion_tokens":34},"x":1}`, nil, [3]int{12, 34, -1}},
		"none":        {"application/json", `{"choices":[{"text":"` + filler + `"}]}`, nil, [3]int{-1, -1, -1}},
		"no JSON":     {"text/plain", `{"usage":{"prompt_tokens":12}}`, nil, [3]int{-1, -1, -1}},
		"compressed":  {"application/json", `{"usage":{"prompt_tokens":12}}`, []string{"content-encoding", "gzip"}, [3]int{-1, -1, -1}},
		"events":      {"text/event-stream", "data: {\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":1}}\r\n\r\ndata: {\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":34}}\n\ndata: [DONE]\n\n", nil, [3]int{12, 34, -1}},
		"long events": {"text/event-stream", "data: {\"x\":\"" + filler + "\",\"usage\":{\"prompt_tokens\":5}}\n\ndata: {\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":34}}\n\n", nil, [3]int{12, 34, -1}},
		"event of the responses API": {"text/event-stream", "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":12,\"output_tokens\":34,\"input_tokens_details\":{\"cached_tokens\":8}}}}\n\n",
			nil, [3]int{12, 34, 8}},
		"gRPC": {"application/grpc", grpcBody, nil, [3]int{12, 34, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{len(c.body), 7000, 11} {
				if len(c.body)/size > 1000 {
					continue
				}
				r := new(recorder)
				p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
				g := p.open(t, duplex)
				if c.content == "application/grpc" {
					g.headers(grpcHeaders(), nil, true)
				} else {
					g.headers(chatHeaders(), nil, true)
				}
				g.picked()
				g.responds("200", c.content, "", false, c.more...)
				for rest := c.body; rest != ""; {
					n := min(size, len(rest))
					g.chunk(rest[:n], n == len(rest))
					rest = rest[n:]
				}
				g.done()
				o := r.outcome()
				for i, n := range []*uint32{o.PromptTokens, o.OutputTokens, o.CachedTokens} {
					got := -1
					if n != nil {
						got = int(*n)
					}
					require.Equal(t, c.want[i], got, "%d %v", size, o)
				}
				require.NotZero(t, o.GetFirstMessageUs())
				p.idle(t)
			}
		})
	}
}

const (
	prefill  = warmpathv1.LifeStage_LIFE_STAGE_PREFILL_COMPLETE
	released = warmpathv1.LifeStage_LIFE_STAGE_RELEASED
)

// The reports about a reservation, and their times.
func TestStages(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	for name, c := range map[string]struct {
		status, grpcStatus string // the latter in trailers
		code               codes.Code
		first              bool
	}{
		"good":             {"200", "", codes.OK, true},
		"not found":        {"404", "", codes.InvalidArgument, false},
		"shed":             {"429", "", codes.ResourceExhausted, false},
		"failed":           {"500", "", codes.Unavailable, false},
		"not reached":      {"503", "", codes.Unavailable, false},
		"slow":             {"504", "", codes.DeadlineExceeded, false},
		"gRPC":             {"200", "0", codes.OK, true},
		"failed over gRPC": {"200", "14", codes.Unavailable, true},
	} {
		t.Run(name, func(t *testing.T) {
			r.lives = nil
			g := p.open(t, duplex)
			g.headers(chatHeaders(), nil, true)
			g.picked()
			require.Empty(t, r.stages())
			g.responds(c.status, "text/plain", "", false)
			require.Empty(t, r.stages())
			var want []warmpathv1.LifeStage
			g.chunk("x", false)
			if c.first {
				want = append(want, prefill)
			}
			require.Equal(t, want, r.stages())
			g.chunk("x", c.grpcStatus == "")
			if c.grpcStatus != "" {
				require.Equal(t, want, r.stages())
				g.responseTrailers("grpc-status", c.grpcStatus)
			}
			require.Equal(t, append(want, released), r.stages())
			g.done()
			require.Equal(t, append(want, released), r.stages(), "once")
			require.EqualValues(t, c.code, r.outcome().GetCode())
			require.True(t, r.outcome().GetSent())
			require.Equal(t, c.first, r.outcome().GetFirstMessageUs() > 0)
		})
	}
}

// The reservation of a long request is renewed until it ends.
func TestRenewal(t *testing.T) {
	r := &recorder{lease: 30}
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	g := p.open(t, duplex)
	g.headers(chatHeaders(), nil, true)
	g.picked()
	renewals := func() (n int) {
		for _, l := range r.reports() {
			if l.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_PROGRESS {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return renewals() >= 3 }, 30*time.Second, time.Millisecond)
	g.responds("200", "text/plain", "", true)
	g.done()
	p.idle(t)
}

// Wherever a stream breaks, the reservation is released.
func TestAborts(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	text := prompt("hello")
	steps := []func(*gateway){
		func(g *gateway) {},
		func(g *gateway) { g.headers(chatHeaders(), nil, false) },
		func(g *gateway) { g.body(text[:10], false) },
		func(g *gateway) { g.body(text[10:], false) },
		func(g *gateway) { g.trailers() }, // the gateway does not wait for an answer
		func(g *gateway) { g.picked() },
		func(g *gateway) { g.echoed(text, false); require.NotNil(t, g.next().GetRequestTrailers()) },
		func(g *gateway) { g.responds("200", "text/event-stream", "", false) },
		func(g *gateway) { g.chunk("data: {}\n", false) },
		func(g *gateway) { g.chunk("data: {\"usage\":{\"prompt_tokens\":3}}\nda", false) },
		func(g *gateway) { g.responseTrailers() },
	}
	for name, abort := range map[string]func(*gateway){
		"canceled":    func(g *gateway) { g.cancel() },
		"half closed": func(g *gateway) { g.halfClose() },
	} {
		for n := range len(steps) + 1 {
			g := p.open(t, duplex)
			for _, step := range steps[:n] {
				step(g)
			}
			abort(g)
			for range g.got {
			}
			p.idle(t)
			if n > 6 && n <= 10 {
				require.EqualValues(t, codes.Canceled, r.outcome().GetCode(), "%s after %d", name, n)
			}
			if n == 10 {
				require.EqualValues(t, 3, r.outcome().GetPromptTokens())
			}
		}
	}
	for _, l := range r.reports() {
		if l.GetStage() == released && codes.Code(l.GetOutcome().GetCode()) == codes.Canceled {
			require.True(t, l.GetOutcome().GetSent(), "nothing is learned against a replica")
		}
	}

	// A second request in one stream is an error.
	g := p.open(t, duplex)
	g.headers(chatHeaders(), nil, true)
	g.picked()
	g.headers(chatHeaders(), nil, true)
	for range g.got {
	}
	require.Equal(t, codes.InvalidArgument, status.Code(g.err))
	p.idle(t)

	// The server stops.
	g = p.open(t, duplex)
	g.headers(chatHeaders(), nil, true)
	g.picked()
	p.Close()
	for range g.got {
	}
	p.idle(t)
}

// gRPC messages are read by their dialect, the first one without waiting for the end of the stream.
func TestGRPCBodies(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	message := field(field(nil, 1, "id"), 3, "hello "+strings.Repeat("x", 100))
	for name, c := range map[string]struct {
		path, body string
		text       string
	}{
		"first of several": {generate, frame(message) + frame(message), "hello"},
		"compressed":       {generate, "\x01" + frame(message)[1:], ""},
		"unknown method":   {"/a.B/C", frame(message), ""},
		"no message":       {generate, "\x00", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := p.open(t, duplex)
			h := grpcHeaders()
			h[":path"] = c.path
			g.headers(h, nil, false)
			for i := range c.body[:len(c.body)-1] {
				g.body(c.body[i:i+1], false)
			}
			g.body(c.body[len(c.body)-1:], false)
			if name != "first of several" {
				g.body("", true)
			}
			require.Len(t, g.picked(), 3)
			g.echoed(c.body, name != "first of several")
			require.True(t, strings.HasPrefix(r.last().GetKey().GetText(), c.text))
			require.Equal(t, c.text == "", r.last().GetKey().GetText() == "")
			g.responds("200", "application/grpc", "", true, "grpc-status", "0")
			g.done()
		})
	}
	g := p.open(t, modev3.ProcessingMode_BUFFERED)
	g.headers(grpcHeaders(), nil, false)
	g.next()
	g.body(frame(message), true)
	a := g.next()
	require.Len(t, g.pickOf(a, a.GetRequestBody().GetResponse()), 3)
	require.Contains(t, r.last().GetKey().GetText(), "hello")
	g.done()
	p.idle(t)
}

// The dialects and session keys of a deployment apply: of the one that the endpoint names, or of the only one.
func TestOwnDialect(t *testing.T) {
	own := strings.Replace(fleet, "    policy:", `    session_keys: [x-chat]
    dialects: [{methods: [/a.B/C], prompt: "2"}]
    policy:`, 1)
	for name, c := range map[string]struct {
		config, deployment, text, session string
	}{
		"named":   {own + "  code: {register: true}", "chat", "hello", "7"},
		"only":    {own, "", "hello", "7"},
		"several": {own + "  code: {register: true}", "", "", ""},
		"none":    {fleet, "chat", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := new(recorder)
			p := startPicker(t, c.config, extproc.Options{Deployment: c.deployment}, r.wrap)
			g := p.open(t, duplex)
			h := grpcHeaders()
			h[":path"], h["x-chat"] = "/a.B/C", "7"
			g.headers(h, nil, false)
			g.body(frame(field(nil, 2, "hello")), true)
			g.next()
			require.Equal(t, c.text, r.last().GetKey().GetText())
			require.Equal(t, c.session, r.last().GetKey().GetSession())
		})
	}
}

// A body longer than the limit for the key is routed by its beginning.
func TestLongBodies(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{MaxBody: 10_000}, r.wrap)
	text := prompt(strings.Repeat("long ", 20_000))
	g := p.open(t, duplex)
	g.headers(chatHeaders(), nil, false)
	g.body(text[:6000], false)
	g.body(text[6000:12_000], false)
	g.picked()
	g.echoed(text[:12_000], false)
	require.Contains(t, r.last().GetKey().GetText(), strings.Repeat("long ", 1900))
	require.Less(t, len(r.last().GetKey().GetText()), 10_000)
	g.body(text[12_000:], true)
	g.echoed(text[12_000:], true)
	g.done()

	g = p.open(t, duplex)
	g.headers(chatHeaders(), nil, false)
	g.body(text, true)
	g.picked()
	g.echoed(text, true)
	g.done()
	p.idle(t)

	// All bodies together stay within their limit.
	p = startPicker(t, fleet, extproc.Options{MaxHeld: 10_000}, r.wrap)
	first := p.open(t, duplex)
	first.headers(chatHeaders(), nil, false)
	first.body(text[:8000], false)
	head := int64(proto.Size(headerMap(chatHeaders())))
	require.Eventually(t, func() bool { return p.Held() == head+8000 }, 30*time.Second, time.Millisecond)
	for range 2 {
		g := p.open(t, duplex)
		g.headers(chatHeaders(), nil, false)
		g.body(text[:1000], false) // there is still room for the first
		g.body(text[1000:9000], false)
		g.picked()
		g.echoed(text[:9000], false)
		g.halfClose()
		for range g.got {
		}
	}
	first.body(text[8000:9000], true)
	first.picked()
	first.echoed(text[:9000], true)
	first.done()
	p.idle(t)
	require.Zero(t, p.Held())
}
