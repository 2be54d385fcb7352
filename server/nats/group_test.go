package nats_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
)

// However fast servers are replaced, one after the other, the store works again: a server that ends takes itself out of
// the majority that is needed. Versions go on rising where all were restarted at once.
func TestStoreOutlivesItsServers(t *testing.T) {
	t.Parallel()
	at := ports(t, 3)
	var buses [3]cluster.Bus
	var stores [3]policy.Store
	for i := range buses {
		buses[i], stores[i] = openBus(t, at, i)
	}
	last := set(t, stores[0], "k")
	for i := range buses {
		buses[i].Close()
		buses[i], stores[i] = openBus(t, at, i)
		last = max(last, set(t, stores[i], "k"))
	}
	for i := range buses {
		buses[i].Close()
	}
	for i := range buses {
		buses[i], stores[i] = openBus(t, at, i)
	}
	require.Greater(t, set(t, stores[0], "k"), last)
	for i := range buses {
		buses[i].Close()
	}
}

// startMember starts a server of NATS in a cluster, with a user that may ask it to lead no more.
func startMember(t testing.TB, routes []int) *natsserver.Server {
	t.Helper()
	system := natsserver.NewAccount(natsserver.DEFAULT_SYSTEM_ACCOUNT)
	o := &natsserver.Options{
		ServerName: fmt.Sprint("member-", tried.Add(1)), NoSigs: true, JetStream: true, StoreDir: t.TempDir(),
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT,
		Accounts: []*natsserver.Account{system}, SystemAccount: system.Name,
		Users: []*natsserver.User{{Username: "system", Password: "p", Account: system}},
		Cluster: natsserver.ClusterOpts{
			Name: "warmpath", Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, Username: "s", Password: "secret",
		},
	}
	for _, port := range routes {
		u, err := url.Parse(fmt.Sprintf("nats://s:secret@127.0.0.1:%d", port))
		require.NoError(t, err)
		o.Routes = append(o.Routes, u)
	}
	s, err := natsserver.NewServer(o)
	require.NoError(t, err)
	go s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// A server that is lost without a word is taken out by the one that leads.
func TestLostServersAreTakenOut(t *testing.T) {
	t.Parallel()
	at := ports(t, 3)
	for i := range at {
		b, _ := openBus(t, at, i)
		defer b.Close()
	}
	observer, lost := startMember(t, at), startMember(t, at)
	members := func() int {
		info, err := observer.Jsz(nil)
		require.NoError(t, err)
		if info.Meta == nil {
			return 0
		}
		return info.Meta.Size
	}
	require.Eventually(t, func() bool { return members() == 5 }, 2*time.Minute, 20*time.Millisecond)
	lost.Shutdown()
	conn, err := nats.Connect("", nats.InProcessServer(observer), nats.UserInfo("system", "p"))
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool {
		if observer.JetStreamIsLeader() { // it takes nothing out
			_, _ = conn.Request(natsserver.JSApiLeaderStepDown, nil, time.Second)
		}
		return members() == 4
	}, 2*time.Minute, 100*time.Millisecond)
}
