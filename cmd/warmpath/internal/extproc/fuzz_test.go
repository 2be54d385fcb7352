package extproc

import (
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// Any input is parsed as protobuf parses it, within bounds, and usage does not depend on the chunks.
func FuzzBodies(f *testing.F) {
	table, err := requestkey.NewTable()
	require.NoError(f, err)
	method := table.Lookup("/vllm.grpc.engine.VllmEngine/Generate")
	for _, m := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("x"), EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{{Key: "a", RawValue: []byte("b")}, {Key: "c", Value: "d"}}}, EndOfStream: true,
		}}},
	} {
		raw, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(raw, uint8(3))
	}
	f.Add([]byte(`data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}`+"\n"), uint8(7))
	f.Add([]byte("\x00\x00\x00\x00\x04\x0a\x02\x10\x0c\x00\x00\x00\x00\x00"), uint8(1))
	f.Fuzz(func(t *testing.T, raw []byte, size uint8) {
		sameMessage(t, raw)
		firstMessage(raw)
		for _, m := range []*requestkey.Method{nil, method} {
			read := func(size int) *policy.Usage {
				var u usageReader
				u.begin(headers{{[]byte("content-type"), []byte("application/json")}}, m)
				for rest := raw; len(rest) > 0; {
					n := min(max(size, 1), len(rest))
					u.add(rest[:n])
					require.LessOrEqual(t, len(u.kept), maxKept)
					rest = rest[n:]
				}
				return u.end()
			}
			if whole := read(len(raw)); len(raw) < maxKept/2 {
				require.Equal(t, whole, read(int(size)))
			}
		}
	})
}

func sameMessage(t *testing.T, raw []byte) {
	m := message{raw: raw}
	_ = m.read()
	_, _ = m.modes()
	_, _ = subsetOf(m.metadata)
	_ = codeOf(m.headers, 0)
	var want extprocv3.ProcessingRequest
	if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, &want) != nil {
		return
	}
	canonical, err := proto.Marshal(&want)
	require.NoError(t, err)
	m = message{raw: canonical}
	require.NoError(t, m.read())
	require.Equal(t, want.GetObservabilityMode(), m.observes)
	var head *extprocv3.HttpHeaders
	var body *extprocv3.HttpBody
	switch m.kind {
	case requestHeaders:
		head = want.GetRequestHeaders()
	case responseHeaders:
		head = want.GetResponseHeaders()
	case requestBody:
		body = want.GetRequestBody()
	case responseBody:
		body = want.GetResponseBody()
	}
	require.Equal(t, string(body.GetBody()), string(m.body))
	require.Equal(t, head.GetEndOfStream() || body.GetEndOfStream(), m.end)
	if head != nil && m.head <= maxHead {
		require.Len(t, m.headers, len(head.GetHeaders().GetHeaders()))
	}
}
