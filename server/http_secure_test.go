package server

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// Over HTTP a call without a token is refused, and one with a token sees its own deployments only. Health needs no
// token.
func TestHTTPPrincipals(t *testing.T) {
	d := startHTTP(t, withHTTP+"principals: [{name: proxy, token: proxy-0123456789abcd, deployments: [chat]}]\n"+quiet+
		"  code: {replicas: [{id: z, address: '10.0.0.9:1'}]}\n", discard)
	const known = "Bearer proxy-0123456789abcd"
	for _, tt := range []struct {
		authorization, deployment string
		code                      int
		reason                    string
	}{
		{known, "chat", 200, "round_robin"},
		{"", "chat", 401, "unauthenticated"},
		{"Bearer unknown-0123456789", "chat", 401, "unauthenticated"},
	} {
		_, code, reason := d.route(t, nil, "Authorization", tt.authorization, httpendpoint.HeaderDeployment, tt.deployment)
		require.Equal(t, tt.code, code, tt)
		require.Equal(t, tt.reason, reason, tt)
	}
	to, code, _ := d.route(t, nil, "Authorization", known, httpendpoint.HeaderDeployment, "code")
	require.Contains(t, []int{http.StatusForbidden, http.StatusNotFound}, code)
	require.Empty(t, to.ReplicaID)
	a, err := http.Get("http://" + d.addr + httpendpoint.HealthPath)
	require.NoError(t, err)
	defer a.Body.Close()
	require.Equal(t, http.StatusOK, a.StatusCode)
}

// With TLS in the config the HTTP endpoint serves TLS, and HTTP/1.1 only.
func TestHTTPOverTLS(t *testing.T) {
	a := newAuthority(t)
	f := tlsFiles(t, a)
	d := startHTTP(t, withHTTP+f.yaml("")+quiet, discard)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool()}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	r, err := client.Post("https://"+d.addr+httpendpoint.RoutePath, "application/json", nil)
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.Equal(t, 1, r.ProtoMajor)
	var to httpendpoint.Destination
	require.NoError(t, json.NewDecoder(r.Body).Decode(&to))
	require.NotEmpty(t, to.ReplicaID)
	plain, err := http.Post("http://"+d.addr+httpendpoint.RoutePath, "application/json", nil)
	require.NoError(t, err)
	defer plain.Body.Close()
	require.Equal(t, http.StatusBadRequest, plain.StatusCode, "net/http answers that this is a TLS port")
}
