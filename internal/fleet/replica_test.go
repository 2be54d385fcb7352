package fleet

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// fullFleet has a replica with every field, and one with its address alone.
var fullFleet = []policy.Attributes{
	{
		ID: "a", Address: "10.0.0.1:50051", ServerName: "a.example", Zone: "z1", Node: "n1", Weight: 1.5,
		MaxOngoing: 64, Models: []string{"m"}, Adapters: []string{"x", "z"},
		KVEvents: "tcp://10.0.0.1:5557", KVEventsReplay: "tcp://10.0.0.1:6557", Ranks: 4, Draining: true,
		Role: policy.RolePrefill, Pair: "r7/tp4/nixl", KVBootstrap: "10.0.0.1:9000", KVEngineID: "e1",
	},
	{ID: "[2001:db8::1]:50051", Address: "[2001:db8::1]:50051"},
}

func TestParseList(t *testing.T) {
	got, err := ParseList("a:1, r=b:1,x=y=[::1]:1,[fe80::1%eth0]:2")
	require.NoError(t, err)
	assert.Equal(t, []policy.Attributes{
		{ID: "a:1", Address: "a:1"}, {ID: "r", Address: "b:1"}, {ID: "x=y", Address: "[::1]:1"},
		{ID: "[fe80::1%eth0]:2", Address: "[fe80::1%eth0]:2"},
	}, got)

	for list, want := range map[string]string{
		"":              "entry 1 is empty",
		"a:1,":          "entry 2 is empty",
		"a:1,b":         `entry 2 ("b"): address: "b" is not host:port`,
		"a:1,=b:1":      `entry 2 ("=b:1"): the id before = is empty`,
		"a:1,b=":        `entry 2 ("b="): address: missing`,
		"a:1,a:1":       `entry 2 ("a:1"): address: a:1 is already the address of entry 1`,
		"r=a:1,r=b:1":   `entry 2 ("r=b:1"): id: "r" is already the id of entry 1`,
		"a:1/x":         `entry 1 ("a:1/x"): address: port "1/x"`,
		"a:1,r r=b:1":   `entry 2 ("r r=b:1"): id:`,
		"a:99999":       `port "99999"`,
		"http://a:1":    `entry 1 ("http://a:1"): address:`,
		"a:1;b:1":       `entry 1 ("a:1;b:1"): address:`,
		"[::1]:1,::1:1": `entry 2 ("::1:1"): address:`,
	} {
		got, err := ParseList(list)
		assert.ErrorContains(t, err, want, "%q", list)
		assert.Nil(t, got)
	}
}

func TestReplicaAuthority(t *testing.T) {
	for _, tt := range []struct {
		r    policy.Attributes
		want string
	}{
		{policy.Attributes{Address: "a:1"}, "a:1"},
		{policy.Attributes{Address: "a:1", ServerName: "b"}, "b"},
		{policy.Attributes{Address: "[::1]:1"}, "[::1]:1"},
		{policy.Attributes{Address: "[fe80::1%eth0]:1"}, "[fe80::1]:1"},
	} {
		assert.Equal(t, tt.want, Authority(tt.r))
	}
}

// A replica whose kv_events only its publisher can parse is usable.
func TestSettleLeavesEvents(t *testing.T) {
	r := policy.Attributes{Address: "a:1", KVEvents: "grpc:newer"}
	require.NoError(t, Settle(&r))
	require.Equal(t, "grpc:newer", r.KVEvents)
}

func TestSettleRole(t *testing.T) {
	for role, want := range map[string]string{"": "", "both": "", "prefill": policy.RolePrefill, "decode": policy.RoleDecode} {
		r := policy.Attributes{Address: "a:1", Role: role}
		require.NoError(t, Settle(&r))
		require.Equal(t, want, r.Role)
	}
	require.ErrorContains(t, Settle(&policy.Attributes{Address: "a:1", Role: "Prefill"}), "role: ")
}

func TestBootstrap(t *testing.T) {
	require.Equal(t, "a:8998", Bootstrap(policy.Attributes{Address: "a:1"}))
	require.Equal(t, "[::1]:8998", Bootstrap(policy.Attributes{Address: "[::1]:1"}))
	require.Equal(t, "b:2", Bootstrap(policy.Attributes{Address: "a:1", KVBootstrap: "b:2"}))
}
