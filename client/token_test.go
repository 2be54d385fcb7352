package client

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	now := time.Unix(1000, 0)
	f := TokenFile(path).(*tokenFile)
	f.now = func() time.Time { return now }
	require.True(t, f.RequireTransportSecurity())
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	sends := func(want string) {
		t.Helper()
		md, err := f.GetRequestMetadata(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]string{"authorization": "Bearer " + want}, md)
	}
	_, err := f.GetRequestMetadata(t.Context())
	require.ErrorContains(t, err, "client: the token: open ")
	write("\nx\n")
	_, err = f.GetRequestMetadata(t.Context())
	require.ErrorContains(t, err, "is empty")
	write(" first \nold\n")
	sends("first")
	write("second")
	sends("first")
	now = now.Add(tokenAge)
	sends("second")
	require.NoError(t, os.Remove(path))
	now = now.Add(tokenAge)
	sends("second")
}
