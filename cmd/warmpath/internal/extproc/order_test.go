package extproc_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
)

// A gateway that does not show the headers of requests gets the pick with the body.
func TestRequestWithoutHeaders(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, r.wrap)
	text := prompt("hello")
	for _, mode := range []modev3.ProcessingMode_BodySendMode{duplex, modev3.ProcessingMode_BUFFERED} {
		g := p.open(t, mode)
		m := &extprocv3.ProcessingRequest{ProtocolConfig: g.protocol(), Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: true},
		}}
		g.send <- m
		a := g.next()
		require.NotNil(t, a.GetRequestBody(), "%v", a)
		in := a.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()
		require.Equal(t, strings.Join(r.chose, ","), in["x-gateway-destination-endpoint"].GetStringValue())
		require.NotEmpty(t, in["x-warmpath-replica"].GetStringValue())
		require.NotEmpty(t, in["x-warmpath-reason"].GetStringValue())
		require.Contains(t, r.last().GetKey().GetText(), "hello")
		if mode == duplex {
			c := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			require.Equal(t, text, string(c.GetBody()))
			require.True(t, c.GetEndOfStream())
		}
		g.responds("200", "text/plain", "", true)
		g.done()
		p.idle(t)
	}

	g := p.open(t, duplex) // trailers, and nothing else
	g.send <- &extprocv3.ProcessingRequest{ProtocolConfig: g.protocol(), Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: new(extprocv3.HttpTrailers),
	}}
	a := g.next()
	require.NotNil(t, a.GetRequestTrailers(), "%v", a)
	require.NotNil(t, a.GetDynamicMetadata())
	g.responds("200", "text/plain", "", true)
	g.done()
	p.idle(t)
}

// Messages in another order are the gateway's fault, and the picker says so.
func TestWrongOrders(t *testing.T) {
	p := startPicker(t, fleet, extproc.Options{Fallbacks: 2}, nil)
	body := &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("{}"), EndOfStream: true}}
	headers := &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(chatHeaders())}}
	for name, all := range map[string][]*extprocv3.ProcessingRequest{
		"response headers": {{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: new(extprocv3.HttpHeaders)}}},
		"response body":    {{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: new(extprocv3.HttpBody)}}},
		"response trailers": {{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
			ResponseTrailers: new(extprocv3.HttpTrailers),
		}}},
		"headers twice":      {{Request: headers}, {Request: headers}},
		"headers after body": {{Request: body}, {Request: headers}},
	} {
		g := p.open(t, duplex)
		for _, m := range all {
			g.send <- m
		}
		for range g.got {
		}
		require.Equal(t, codes.InvalidArgument, status.Code(g.err), "%s: %v", name, g.err)
	}
	p.Close()
}

// Headers are bounded, and count among what is held.
func TestHeads(t *testing.T) {
	p := startPicker(t, fleet, extproc.Options{}, nil)
	g := p.open(t, duplex)
	g.headers(chatHeaders("x-long", strings.Repeat("x", 61<<10)), nil, false)
	code, reason := g.refused()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, code)
	require.Equal(t, "headers_too_long", reason)
	g.done()
	p.idle(t)

	p = startPicker(t, fleet, extproc.Options{MaxHeld: 100 << 10}, nil)
	long := chatHeaders("x-long", strings.Repeat("x", 55<<10))
	first := p.open(t, duplex)
	first.headers(long, nil, false)
	require.Eventually(t, func() bool { return p.Held() > 55<<10 }, 30*time.Second, time.Millisecond)
	second := p.open(t, duplex) // there is no room: it is routed without its body
	second.headers(long, nil, false)
	second.picked()
	first.body(prompt("hello"), true)
	first.picked()
	first.echoed(prompt("hello"), true)
	require.Zero(t, p.Held())
}

// A request that turns its connection into a websocket is routed by its headers: its body may never end.
func TestUpgrades(t *testing.T) {
	p := startPicker(t, fleet, extproc.Options{}, nil)
	for _, h := range []map[string]string{
		{":method": "GET", ":path": "/v1/realtime", "upgrade": "websocket", "connection": "upgrade"},
		{":method": "CONNECT", ":protocol": "websocket", ":path": "/v1/realtime"},
	} {
		g := p.open(t, duplex)
		g.headers(h, nil, false)
		g.picked()
		g.responds("101", "", "", false)
		g.body("ping", false)
		g.echoed("ping", false)
		g.chunk("pong", false)
	}
}

// A gateway that shows no body of a response has shown headers before, or has not: what becomes of a request without
// them is concluded from that.
func TestResponsesThatAreNotShown(t *testing.T) {
	r := new(recorder)
	p := startPicker(t, fleet, extproc.Options{}, r.wrap)
	released := func(count int) { // by the gateway's messages, not by a time
		t.Helper()
		n := 0
		for _, l := range r.reports() {
			if l.GetStage() == released {
				n++
			}
		}
		require.Equal(t, count, n)
	}
	open := func(request modev3.ProcessingMode_BodySendMode) *gateway {
		g := p.open(t, request)
		g.send <- &extprocv3.ProcessingRequest{
			ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: request},
			Request: &extprocv3.ProcessingRequest_RequestHeaders{
				RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(chatHeaders()), EndOfStream: true},
			},
		}
		g.picked()
		return g
	}
	ends := func(g *gateway) {
		g.halfClose()
		for range g.got {
		}
	}

	ends(open(duplex)) // it ends with the request, and its response is not seen: a pick counts
	released(0)
	require.EqualValues(t, 1, p.deployment(t).GetReservations())
	ends(open(modev3.ProcessingMode_BUFFERED)) // it is as long as the response
	released(1)
	require.Nil(t, r.outcome(), "nothing is known of it")

	g := open(duplex) // the response's headers are shown, and no more
	g.responds("200", "text/plain", "", false)
	ends(g)
	released(1)
	g = open(duplex) // a failed one is over
	g.responds("503", "text/plain", "", false)
	ends(g)
	released(2)
	require.EqualValues(t, codes.Unavailable, r.outcome().GetCode())
	g = open(modev3.ProcessingMode_BUFFERED)
	g.responds("200", "text/plain", "", false)
	ends(g)
	released(3)
	require.EqualValues(t, codes.OK, r.outcome().GetCode())
	require.True(t, r.outcome().GetSent())

	ends(open(duplex)) // it would have shown a response
	released(4)
	require.EqualValues(t, codes.Canceled, r.outcome().GetCode())
}
