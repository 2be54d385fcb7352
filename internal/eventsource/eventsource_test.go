package eventsource

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestParse(t *testing.T) {
	at := func(events, replay string, ranks int) policy.Attributes {
		return policy.Attributes{KVEvents: events, KVEventsReplay: replay, Ranks: ranks}
	}
	for _, c := range []struct {
		attrs policy.Attributes
		want  Source
	}{
		{at("tcp://10.0.0.1:5557", "", 0), Source{Address: "10.0.0.1:5557", Ranks: 1}},
		{at("tcp://*:5557?bind=::&topic=x", "", 1), Source{Address: "[::]:5557", Listen: true, Topic: "x", Ranks: 1}},
		{at("tcp://*:5557", "tcp://a:5558", 1), Source{Address: "127.0.0.1:5557", Listen: true, Replay: "a:5558", Ranks: 1}},
		{at("tcp://[::1]:5557", "tcp://[::1]:5558", 0), Source{Address: "[::1]:5557", Replay: "[::1]:5558", Ranks: 1}},
		{at("tcp://a:1?topic=kv%40", "", 3), Source{Address: "a:1", Topic: "kv@", Ranks: 3}},
		{at("tcp://a:65530", "tcp://a:90", 6), Source{Address: "a:65530", Replay: "a:90", Ranks: 6}},
		{at("grpc:vllm", "", 0), Source{Subscribe: "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", Ranks: 1}},
		{at("grpc:tokenspeed", "", 0), Source{Subscribe: "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/SubscribeKvEvents", Ranks: 1}},
		{at("grpc:openengine", "", 2), Source{Subscribe: "/openengine.v1.Control/SubscribeKvEvents", Ranks: 2}},
		{at("sources:vllm", "", 0), Source{Discover: []string{"/vllm.KvTransfer/GetKvEventSources", "/vllm.Control/GetKvEventSources"}, Ranks: 1}},
	} {
		got, err := Parse(c.attrs)
		require.NoError(t, err, c.attrs)
		require.Equal(t, c.want, got)
	}
	for _, c := range []struct {
		attrs policy.Attributes
		want  string
	}{
		{at("", "", 0), "kv_events: \"\": want tcp://host:port"},
		{at("ipc://x", "", 0), "want tcp://host:port"},
		{at("tcp://a:1/x", "", 0), "want tcp://host:port"},
		{at("tcp://a", "", 0), "not host:port"},
		{at("tcp://a:0", "", 0), "1 to 65535"},
		{at("tcp://:5557", "", 0), "not host:port"},
		{at("tcp://a:65530", "", 7), "no room for 7 ranks"},
		{at("tcp://a:1", "tcp://a:65535", 2), "no room"},
		{at("tcp://a:1", "5558", 0), "kv_events_replay: \"5558\": want"},
		{at("tcp://a:1", "tcp://*:5558", 0), "kv_events_replay: "},
		{at("tcp://a:1?bind=0.0.0.0", "", 0), "kv_events: "},
		{at("tcp://*:1?bind=eth0", "", 0), "kv_events: "},
		{at("grpc:vllm", "tcp://a:5558", 0), "begins with tcp://"},
		{at("tcp://a:1?reply=2", "", 0), `"reply" is neither topic nor bind`},
		{at("grpc:tgi", "", 0), `"tgi" is none of openengine, sglang, tokenspeed, trtllm, vllm`},
		{at("sources:", "", 0), `"" is none`},
		{at("tcp://a:1?%zz", "", 0), "topic=…"},
	} {
		_, err := Parse(c.attrs)
		require.ErrorContains(t, err, c.want, c.attrs)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("tcp://a:1?topic=x", "tcp://b:2", 3)
	f.Fuzz(func(t *testing.T, events, replay string, ranks int) {
		src, err := Parse(policy.Attributes{KVEvents: events, KVEventsReplay: replay, Ranks: ranks})
		if err == nil && (src.Ranks < 1 || src.Address == "" && src.Subscribe == "" && len(src.Discover) == 0) {
			t.Fatalf("%q: %+v", events, src)
		}
	})
}
