package nats_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/internal/freeport"
)

const manifests = "../../deploy/kustomize/cluster/"

// manifested are the options of the three servers of NATS that the manifests bring, on the loopback.
func manifested(t testing.TB, password string) (all []*natsserver.Options) {
	raw, err := os.ReadFile(manifests + "nats.yaml")
	require.NoError(t, err)
	stateful, _, _ := strings.Cut(string(raw), "\n---\n")
	var set struct {
		Spec struct {
			Template struct {
				Spec struct{ Containers []struct{ Args []string } }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(stateful), &set))
	args := set.Spec.Template.Spec.Containers[0].Args
	flag := func(name string) string {
		for _, a := range args {
			if value, ok := strings.CutPrefix(a, "--"+name+"="); ok {
				return strings.ReplaceAll(value, "$(PASSWORD)", password)
			}
		}
		require.Fail(t, "no flag "+name)
		return ""
	}
	t.Setenv("PASSWORD", password)
	ports := freeport.Find(3)
	for i, port := range ports {
		t.Setenv("POD", fmt.Sprint("nats-", i))
		o, err := natsserver.ProcessConfigFile(manifests + "nats.conf")
		require.NoError(t, err)
		o.Host, o.Port, o.HTTPPort, o.NoSigs, o.StoreDir = "127.0.0.1", natsserver.RANDOM_PORT, 0, true, t.TempDir()
		own, err := url.Parse(flag("cluster"))
		require.NoError(t, err)
		o.Cluster.Username = own.User.Username()
		o.Cluster.Password, _ = own.User.Password()
		o.Cluster.Host, o.Cluster.Port = "127.0.0.1", port
		for j, r := range strings.Split(flag("routes"), ",") {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", ports[j])})
			to, err := url.Parse(r)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("nats-%d.nats:6222", j), to.Host)
			o.Routes[j].User = to.User
		}
		all = append(all, o)
	}
	return all
}

// The NATS of the manifests asks for its password. Without one of its three servers the look-aside servers go on
// sharing their view, and the store has what it had.
func TestNATSOfTheManifestsOutlivesOneServer(t *testing.T) {
	const password = "p0123456789abcdef"
	var servers []*natsserver.Server
	var addresses []string
	for _, o := range manifested(t, password) {
		n := serveNATS(t, o)
		servers = append(servers, n)
		addresses = append(addresses, "nats://"+n.Addr().String())
	}
	file := filepath.Join(t.TempDir(), "creds")
	require.NoError(t, os.WriteFile(file, []byte("warmpath:"+password+"\n"), 0o600))
	config := fmt.Sprintf("cluster: {nats: {url: '%s', creds: %s}}\n%s", strings.Join(addresses, ","), file, deployments)
	a, b := start(t, config), start(t, config)
	a.agrees(t, 1)
	b.agrees(t, 1)
	bus, open := openBus(t, config)
	defer bus.Close()
	store := patient{open, t}
	first, err := store.Set(t.Context(), "k", []byte("v"), time.Hour)
	require.NoError(t, err)

	servers[0].Shutdown()
	servers[0].WaitForShutdown()
	e, err := store.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "v", string(e.Value))
	second, err := store.Set(t.Context(), "k", []byte("w"), time.Hour)
	require.NoError(t, err)
	require.Greater(t, second, first)
	a.agrees(t, 1)
	b.agrees(t, 1)
	a.reserve(t)
	require.Eventually(t, func() bool { return b.ongoing(t) == 1 }, time.Minute, 5*time.Millisecond)
}

// A bucket whose servers have lost it is made anew, and its versions go on rising.
func TestStoreOutlivesItsBucket(t *testing.T) {
	nats := runNATS(t, nil)
	bus, open := openBus(t, joined(nats))
	defer bus.Close()
	store := patient{open, t}
	first, err := store.Set(t.Context(), "k", nil, time.Hour)
	require.NoError(t, err)
	conn, err := natsclient.Connect(nats.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	for name := range js.StreamNames(t.Context()).Name() {
		require.NoError(t, js.DeleteStream(t.Context(), name))
	}
	second, err := store.Set(t.Context(), "k", nil, time.Hour)
	require.NoError(t, err)
	require.Greater(t, second, first)
}
