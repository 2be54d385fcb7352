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

// Issue 12.49: replicas share a port where their topics tell them apart, and only there.
func TestCheckListeners(t *testing.T) {
	at := func(id, address, events string, ranks int) policy.Attributes {
		return Declared(policy.Attributes{ID: id, Address: address, KVEvents: events, Ranks: ranks}, "", "")
	}
	for _, c := range []struct {
		a, b, c policy.Attributes
		wrong   string
	}{
		{at("a", "h1:1", "tcp://*:5557?topic=kv@HOST:PORT@", 0), at("b", "h1:2", "tcp://*:5557?topic=kv@HOST:PORT@", 0), at("c", "h2:1", "tcp://*:5557?topic=kv@HOST:PORT@", 0), ""},
		{at("a", "h1:1", "tcp://*:5557", 0), at("b", "h2:1", "tcp://*:5558", 0), at("c", "h3:1", "tcp://h3:5557", 0), ""},
		{at("a", "h1:1", "tcp://*:5557", 0), at("b", "h1:1", "tcp://*:5557", 0), at("c", "h1:1", "tcp://*:5557?topic=x", 0), ""},
		{at("a", "h1:1", "tcp://*:5557", 0), at("b", "h2:1", "tcp://*:5557", 0), at("c", "h3:1", "grpc:vllm", 0), "topics"},
		{at("a", "h1:1", "tcp://*:5557", 0), at("b", "h1:1", "tcp://*:5557?topic=kv", 0), at("c", "h2:1", "tcp://*:5557?topic=x", 0), "topics"},
		{at("a", "h1:1", "tcp://*:5557?topic=kv", 0), at("b", "h2:1", "tcp://*:5557?topic=kv@1", 0), at("c", "", "", 0), "topics"},
		{at("a", "h1:1", "tcp://*:5557", 3), at("b", "h2:1", "tcp://*:5559", 0), at("c", "", "", 0), "5559"},
		{at("a", "h1:1", "tcp://*:5557?topic=a", 0), at("b", "h2:1", "tcp://*:5557?topic=b&bind=0.0.0.0", 0), at("c", "", "", 0), "bound on"},
	} {
		err := CheckListeners([]policy.Attributes{c.a, c.b, c.c})
		if c.wrong == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.wrong)
		}
	}
}
