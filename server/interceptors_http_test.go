package server

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// The HTTP endpoint has the principals of gRPC, in the context of a call.
func TestGuardOfHTTP(t *testing.T) {
	g := newAuthenticator(discard)
	c := parse(t, "tls: {cert: c, key: k, ca: a}\nprincipals: [{name: one, token: one-0123456789abcd, rate: 3}, {name: two, subjects: ['spiffe://example.org/two']}]\n"+quiet)
	require.NoError(t, g.set(c))
	defer g.close()
	g.principals["one"].rules.Load().limiter.SetLimit(0) // the burst is all there is
	handler := g.http(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("on purpose")
		}
		_, _ = w.Write([]byte(r.Context().Value(principalKey{}).(*principal).name))
	}), httpendpoint.Deny)
	spiffe, err := url.Parse("spiffe://example.org/two")
	require.NoError(t, err)
	verified := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{URIs: []*url.URL{spiffe}}}}}
	for _, tt := range []struct {
		path, authorization string
		tls                 *tls.ConnectionState
		code                int
		want                string
	}{
		{"/", "Bearer one-0123456789abcd", nil, 200, "one"},
		{"/", "", verified, 200, "two"},
		{"/", "bearer one-0123456789abcd", verified, 200, "one"},
		{"/", "", nil, 401, "unauthenticated: a token is missing"},
		{"/", "", new(tls.ConnectionState), 401, "unauthenticated: a token is missing"},
		{"/", "Bearer wrong", verified, 401, "unauthenticated: the token is not known"},
		{"/panic", "", verified, 500, "internal: the server has a fault"},
		{"/", "Bearer one-0123456789abcd", nil, 200, "one"},
		{"/", "Bearer one-0123456789abcd", nil, 429, "too_many_requests: the principal one has reached its rate"},
	} {
		r := httptest.NewRequest(http.MethodPost, tt.path, nil)
		r.TLS = tt.tls
		if tt.authorization != "" {
			r.Header.Set("Authorization", tt.authorization)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(t, tt.code, w.Code, "%+v", tt)
		reason, message, refused := strings.Cut(tt.want, ": ")
		require.Contains(t, w.Body.String(), reason)
		require.Contains(t, w.Body.String(), message)
		require.Equal(t, refused, w.Header().Get(httpendpoint.HeaderReason) == reason)
		require.Equal(t, tt.code == 401, w.Header().Get("WWW-Authenticate") != "")
	}
	for _, c := range g.principals {
		require.Zero(t, c.calls.Load())
	}
}
