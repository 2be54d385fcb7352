package nats_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/server"
)

// A gate lets clients of NATS in once it is open.
type gate struct {
	open    atomic.Bool
	refused [2]atomic.Int64 // by user
}

// Check implements [natsserver.Authentication].
func (g *gate) Check(c natsserver.ClientAuthentication) bool {
	if user, err := strconv.Atoi(c.GetOpts().Username); err == nil && !g.open.Load() {
		g.refused[user].Add(1)
	}
	return g.open.Load()
}

// A NATS that refuses the credentials is asked again and again: the servers route alone meanwhile, log it once, and are
// one once it takes them.
func TestRefusedCredentials(t *testing.T) {
	var g gate
	running := runNATS(t, &g)
	var nodes [len(g.refused)]*node
	for i := range nodes {
		nodes[i] = start(t, fmt.Sprintf("listen: 127.0.0.1:%d\ncluster: {nats: {url: 'nats://%d:secret@%s'}}\n%s",
			1+i, i, running.Addr(), deployments))
	}
	for i, n := range nodes {
		const refused = "Authorization Violation"
		require.Eventually(t, func() bool {
			return g.refused[i].Load() > 5 && strings.Contains(n.logs.String(), refused)
		}, time.Minute, 5*time.Millisecond)
		var causes []string // another one may come in between, if the machine stands still
		for line := range strings.Lines(n.logs.String()) {
			if _, cause, ok := strings.Cut(line, "NATS cannot be reached"); ok {
				causes = append(causes, cause)
			}
		}
		require.Equal(t, slices.Compact(slices.Clone(causes)), causes, "each cause once")
		require.False(t, n.deployment(t).GetCluster().GetConnected())
		require.NotEmpty(t, n.reserve(t))
	}
	g.open.Store(true)
	for _, n := range nodes {
		n.agrees(t, 1)
		require.Eventually(t, func() bool { return strings.Contains(n.logs.String(), "NATS is reached") }, time.Minute, 5*time.Millisecond)
	}
	require.Eventually(t, func() bool { return nodes[0].ongoing(t) == 2 }, time.Minute, 5*time.Millisecond)
}

// A file of credentials is read for each connection, and must exist when the server starts.
func TestCredentialsOfAFile(t *testing.T) {
	nats := serveNATS(t, &natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, NoSigs: true, Username: "warmpath", Password: "p:ss",
	})
	file := filepath.Join(t.TempDir(), "creds")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	config := strings.Replace(joined(nats), "url:", "creds: "+file+", url:", 1)
	refused := func() string {
		c, err := server.ParseConfig([]byte(config))
		require.NoError(t, err)
		_, err = cluster.Open(c.Cluster, slog.New(slog.DiscardHandler))
		require.Error(t, err)
		return err.Error()
	}
	require.Contains(t, refused(), "nats.creds: open ")
	write("secret")
	require.Contains(t, refused(), "neither NATS credentials nor user:password")

	write("warmpath:wrong\n")
	n := start(t, config)
	require.Eventually(t, func() bool { return strings.Contains(n.logs.String(), "Authorization Violation") }, time.Minute, 5*time.Millisecond)
	write("warmpath:p:ss\n")
	n.agrees(t, 0)
}
