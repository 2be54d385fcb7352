package admission

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/eventsource"
)

// Issue 12.49: replicas share a port only where their topics distinguish them.
func TestCheckListeners(t *testing.T) {
	at := func(id, address, events string, ranks int) policy.Attributes {
		return eventsource.Declared(policy.Attributes{ID: id, Address: address, KVEvents: events, Ranks: ranks}, "", "")
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
