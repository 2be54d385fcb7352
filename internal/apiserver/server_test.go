package apiserver

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(Main{m}) }

// Written objects outlive the API server. A token has the rights of its account, and none before there is a Role.
func TestServer(t *testing.T) {
	s, ctx := Shared(t), t.Context()
	require.NoError(t, s.Namespace(ctx, "a"))
	token, err := s.ServiceAccount(ctx, "a", "reader")
	require.NoError(t, err)
	s.Stop()
	require.Error(t, s.Do(ctx, http.MethodGet, "/api/v1/namespaces/a", "", nil, nil))
	require.NoError(t, s.Start(ctx))
	var got struct {
		Metadata struct{ Name string }
	}
	require.NoError(t, s.Do(ctx, http.MethodGet, "/api/v1/namespaces/a", "", nil, &got))
	require.Equal(t, "a", got.Metadata.Name)

	reader := *s
	reader.Token = token
	require.ErrorContains(t, reader.Do(ctx, http.MethodGet, "/api/v1/namespaces/a/pods", "", nil, nil),
		`User \"system:serviceaccount:a:reader\" cannot list resource`)
}
