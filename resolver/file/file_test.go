package file

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/resolver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// states is a channel that keeps the last state.
type states struct {
	resolver.ClientConn
	last resolver.State
}

func (c *states) UpdateState(s resolver.State) error {
	c.last = s
	return nil
}

func TestProposalsAreBounded(t *testing.T) {
	dir := t.TempDir()
	b := newBuilder(nil)
	for i := range maxProposals + 1 {
		b.proposals[fmt.Sprint(i)] = "x:1"
	}
	path := filepath.Join(dir, "fleet.yaml")
	require.NoError(t, os.WriteFile(path, []byte("replicas: [{address: 'a:1'}]"), 0o600))
	u, err := url.Parse("warmpath-file://" + path)
	require.NoError(t, err)
	target := resolver.Target{URL: *u}
	authority := b.OverrideAuthority(target)
	assert.Equal(t, "warmpath.invalid", authority)
	assert.Len(t, b.proposals, maxProposals+1)
	cc := &states{}
	r, err := b.Build(target, cc, resolver.BuildOptions{Authority: authority})
	require.NoError(t, err)
	r.Close()
	assert.Equal(t, "a:1", cc.last.Endpoints[0].Addresses[0].ServerName, "and own authorities still hold")
}
