package eventsource

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestDeclared(t *testing.T) {
	for _, c := range []struct{ own, replay, events, wantReplay string }{
		{"", "", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"},
		{"tcp://HOST:1", "tcp://HOST:2", "tcp://10.0.0.1:1", "tcp://10.0.0.1:2"},
		{"grpc:vllm", "", "grpc:vllm", ""},
	} {
		a := policy.Attributes{Address: "10.0.0.1:50051", KVEvents: c.own, KVEventsReplay: c.replay}
		a = Declared(a, "tcp://HOST:5557", "tcp://HOST:5558")
		require.Equal(t, c.events, a.KVEvents)
		require.Equal(t, c.wantReplay, a.KVEventsReplay)
	}
	for address, want := range map[string]string{
		"[::1]:50051": "[::1]:5557", "[fe80::1%eth0]:50051": "[fe80::1%eth0]:5557", "replica-0.svc:50051": "replica-0.svc:5557",
	} {
		src, err := Parse(Declared(policy.Attributes{Address: address}, "tcp://HOST:5557", ""))
		require.NoError(t, err)
		require.Equal(t, want, src.Address)
	}
}
