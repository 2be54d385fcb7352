package extproc_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sort"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const fleet = `
load_interval: 10ms
deployments:
  chat:
    policy: {kv_aware: {}}
    replicas:
    - {id: a, address: "10.0.0.1:8000"}
    - {id: b, address: "10.0.0.2:8000"}
    - {id: c, address: "10.0.0.3:8000"}
`

// picker is a look-aside server with an ext_proc endpoint, on the loopback.
type picker struct {
	extprocv3.ExternalProcessorClient
	health healthpb.HealthClient
	status warmpathv1.StatusServiceClient
	*extproc.Server
	address string
}

// startPicker starts a picker. wrap, if it is not nil, wraps the server that the endpoint calls.
func startPicker(t testing.TB, config string, o extproc.Options, wrap func(endpoint.Host) endpoint.Host) *picker {
	t.Helper()
	c, err := server.ParseConfig([]byte(config))
	require.NoError(t, err)
	s, err := server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	host := endpoint.Of(s)
	if wrap != nil {
		host = wrap(host)
	}
	e := extproc.New(host, o)
	routing, routes := listen(t, s.Serve)
	picks, ends := listen(t, e.Serve)
	t.Cleanup(func() {
		require.NoError(t, routing.Close())
		require.NoError(t, picks.Close())
		e.Close()
		s.Close()
		require.NoError(t, <-routes)
		require.NoError(t, <-ends)
	})
	return &picker{
		extprocv3.NewExternalProcessorClient(picks), healthpb.NewHealthClient(picks),
		warmpathv1.NewStatusServiceClient(routing), e, picks.Target(),
	}
}

func listen(t testing.TB, serve func(net.Listener) error) (*grpc.ClientConn, <-chan error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	return conn, ended
}

// deployment is the state of the deployment chat.
func (p *picker) deployment(t testing.TB) *warmpathv1.DeploymentStatus {
	t.Helper()
	a, err := p.status.GetStatus(t.Context(), &warmpathv1.GetStatusRequest{})
	require.NoError(t, err)
	return a.GetDeployments()[0]
}

// idle waits until nothing is reserved or held, and no replica has load.
func (p *picker) idle(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		d := p.deployment(t)
		n := d.GetReservations()
		for _, r := range d.GetReplicas() {
			n += r.GetOngoing()
		}
		return n == 0 && p.Held() == 0
	}, 30*time.Second, time.Millisecond)
}

// A gateway is one exchange in the way of Envoy: one goroutine sends, another one receives.
type gateway struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	send   chan *extprocv3.ProcessingRequest
	got    chan *extprocv3.ProcessingResponse
	err    error // of the stream, once got is closed
	mode   modev3.ProcessingMode_BodySendMode
	began  bool
}

const duplex = modev3.ProcessingMode_FULL_DUPLEX_STREAMED

func (p *picker) open(t testing.TB, mode modev3.ProcessingMode_BodySendMode) *gateway {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	stream, err := p.Process(ctx)
	require.NoError(t, err)
	g := &gateway{
		t: t, stream: stream, cancel: cancel, mode: mode,
		send: make(chan *extprocv3.ProcessingRequest, 1000), got: make(chan *extprocv3.ProcessingResponse, 1000),
	}
	send := g.send
	go func() {
		for m := range send {
			if stream.Send(m) != nil {
				break
			}
		}
		_ = stream.CloseSend()
		for range send { // drains messages after the end of the stream
		}
	}()
	go func() {
		defer close(g.got)
		for {
			m, err := stream.Recv()
			if err != nil {
				g.err = err
				return
			}
			g.got <- m
		}
	}()
	t.Cleanup(func() {
		g.halfClose()
		cancel()
		for range g.got {
		}
	})
	return g
}

// halfClose ends the gateway's side of the stream.
func (g *gateway) halfClose() {
	if g.send != nil {
		close(g.send)
		g.send = nil
	}
}

// done closes the stream as Envoy does after a response, and waits for its end.
func (g *gateway) done() {
	g.t.Helper()
	g.halfClose()
	for m := range g.got {
		require.Fail(g.t, "an answer too many", "%v", m)
	}
	require.ErrorIs(g.t, g.err, io.EOF)
	g.cancel()
}

func (g *gateway) next() *extprocv3.ProcessingResponse {
	g.t.Helper()
	m, open := <-g.got
	if !open {
		require.NoError(g.t, g.err, "the stream has ended")
	}
	return m
}

func header(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: name, RawValue: []byte(value)}
}

func headerMap(all map[string]string) *corev3.HeaderMap {
	m := new(corev3.HeaderMap)
	for name, value := range all {
		m.Headers = append(m.Headers, header(name, value))
	}
	sort.Slice(m.Headers, func(i, j int) bool { return m.Headers[i].Key < m.Headers[j].Key })
	return m
}

// chatHeaders are the headers of an OpenAI request, with others.
func chatHeaders(more ...string) map[string]string {
	h := map[string]string{":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

func (g *gateway) protocol() *extprocv3.ProtocolConfiguration {
	if g.began {
		return nil
	}
	g.began = true
	return &extprocv3.ProtocolConfiguration{RequestBodyMode: g.mode, ResponseBodyMode: g.mode}
}

func metadata(t testing.TB, namespace, key string, value any) *corev3.Metadata {
	t.Helper()
	if value == nil {
		return nil
	}
	s, err := structpb.NewStruct(map[string]any{key: value})
	require.NoError(t, err)
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: s}}
}

// headers sends the request's headers, with a subset unless it is nil.
func (g *gateway) headers(h map[string]string, subset any, end bool) {
	g.send <- &extprocv3.ProcessingRequest{
		ProtocolConfig:  g.protocol(),
		MetadataContext: metadata(g.t, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", subset),
		Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(h), EndOfStream: end},
		},
	}
}

func (g *gateway) body(chunk string, end bool) {
	g.send <- &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(chunk), EndOfStream: end},
	}}
}

func (g *gateway) trailers() {
	g.send <- &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: new(extprocv3.HttpTrailers),
	}}
}

// responds sends the response's headers; served "" = the gateway does not report it.
func (g *gateway) responds(status, content, served string, end bool, more ...string) *extprocv3.ProcessingResponse {
	g.t.Helper()
	h := map[string]string{":status": status, "content-type": content}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(h), EndOfStream: end},
	}}
	if served != "" {
		m.MetadataContext = metadata(g.t, "envoy.lb", "x-gateway-destination-endpoint-served", served)
	}
	g.send <- m
	a := g.next()
	require.NotNil(g.t, a.GetResponseHeaders(), "%v", a)
	return a
}

// chunk sends a chunk of the response, which must come back unchanged.
func (g *gateway) chunk(body string, end bool) {
	g.t.Helper()
	g.send <- &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end},
	}}
	if g.mode != duplex {
		require.Nil(g.t, g.next().GetResponseBody().GetResponse().GetBodyMutation())
		return
	}
	for echoed, ended, first := "", false, true; first || echoed != body || ended != end; first = false {
		m := g.next()
		a := m.GetResponseBody()
		require.NotNil(g.t, a, "%v", m)
		c := a.GetResponse().GetBodyMutation().GetStreamedResponse()
		echoed, ended = echoed+string(c.GetBody()), c.GetEndOfStream()
		require.True(g.t, strings.HasPrefix(body, echoed))
	}
}

func (g *gateway) responseTrailers(more ...string) {
	g.t.Helper()
	h := make(map[string]string)
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	g.send <- &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{Trailers: headerMap(h)},
	}}
	require.NotNil(g.t, g.next().GetResponseTrailers())
}

// pickOf returns the endpoints of an answer, which has the same in header and metadata.
func (g *gateway) pickOf(a *extprocv3.ProcessingResponse, common *extprocv3.CommonResponse) []string {
	g.t.Helper()
	require.True(g.t, common.GetClearRouteCache(), "%v", a)
	in := a.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"]
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		require.Equal(g.t, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, h.GetAppendAction())
		if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
			require.Equal(g.t, in.GetStringValue(), string(h.GetHeader().GetRawValue()))
		}
	}
	require.NotEmpty(g.t, in.GetStringValue())
	return strings.Split(in.GetStringValue(), ",")
}

// picked receives the answer to the headers.
func (g *gateway) picked() []string {
	g.t.Helper()
	a := g.next()
	require.NotNil(g.t, a.GetRequestHeaders(), "%v", a)
	return g.pickOf(a, a.GetRequestHeaders().GetResponse())
}

// echoed receives the chunks of the request until they make up body.
func (g *gateway) echoed(body string, end bool) {
	g.t.Helper()
	n, ended := 0, false
	for n < len(body) || ended != end {
		m := g.next()
		a := m.GetRequestBody()
		require.NotNil(g.t, a, "%v", m)
		c := a.GetResponse().GetBodyMutation().GetStreamedResponse()
		require.LessOrEqual(g.t, n+len(c.GetBody()), len(body))
		require.Equal(g.t, body[n:n+len(c.GetBody())], string(c.GetBody()))
		require.LessOrEqual(g.t, len(c.GetBody()), 64_000)
		n, ended = n+len(c.GetBody()), c.GetEndOfStream()
	}
}

// refused receives the immediate response.
func (g *gateway) refused() (code int, reason string) {
	g.t.Helper()
	m := g.next()
	a := m.GetImmediateResponse()
	require.NotNil(g.t, a, "%v", m)
	for _, h := range a.GetHeaders().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-warmpath-reason" {
			reason = string(h.GetHeader().GetRawValue())
		}
	}
	require.Equal(g.t, "warmpath_"+reason, a.GetDetails())
	return int(a.GetStatus().GetCode()), reason
}

func prompt(text string) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, text)
}
