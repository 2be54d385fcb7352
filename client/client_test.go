package client

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
)

func TestTargets(t *testing.T) {
	own := manual.NewBuilderWithScheme("own")
	for _, tt := range []struct{ target, want string }{
		{"localhost:1", ""},
		{"dns:///localhost:1", ""},
		{"warmpath:///127.0.0.1:1,127.0.0.1:2", ""},
		{"own:///a:1,b:1", ""},
		{"", "the target is empty"},
		{"warmpaht:///127.0.0.1:1", `no resolver has the scheme "warmpaht"`},
		{"http://127.0.0.1:1", `no resolver has the scheme "http"`},
		{"127.0.0.1:1,127.0.0.1:2", "a list of replicas is written warmpath:///host:port,host:port"},
		{"a:1,b:2", "a list of replicas is written warmpath:///host:port,host:port"},
	} {
		cc, err := New(tt.target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(own))
		if tt.want != "" {
			require.ErrorContains(t, err, tt.want, tt.target)
			continue
		}
		require.NoError(t, err, tt.target)
		require.NoError(t, cc.Close())
	}
}

// The balancer of a target without a scheme has the channel's handle before any pick, too.
func TestTargetsWithoutScheme(t *testing.T) {
	for _, target := range []string{"localhost:1", "engines.default.svc:1", "dns:///localhost:1"} {
		var schemes []string
		for _, b := range handleResolvers(nil, target, nil) {
			schemes = append(schemes, b.Scheme())
		}
		require.Contains(t, schemes, "dns", target)
		require.Contains(t, schemes, resolver.GetDefaultScheme(), target)
	}
}

// broken is a config that JSON cannot represent.
type broken struct{ F func() }

func (broken) Name() string { return "broken" }

func TestOptionErrors(t *testing.T) {
	for _, tt := range []struct {
		options []grpc.DialOption
		want    string
	}{
		{[]grpc.DialOption{WithConfig(`{"max_atempts":1}`)}, `warmpath: config: unknown field "max_atempts"`},
		{[]grpc.DialOption{WithConfig(`{"max_atempts":1}`), WithPolicy(roundrobin.Config{})}, `warmpath: config: unknown field "max_atempts"`},
		{[]grpc.DialOption{WithPolicy(broken{})}, "warmpath: config: policy.broken: json: unsupported type: func()"},
		{[]grpc.DialOption{WithPolicy(kvaware.Config{BlockTokens: -1})}, `warmpath: config: policy.kv_aware: block_tokens: -1 is not between 1 and 65536`},
		{[]grpc.DialOption{WithDialects(dialect.Dialect{Methods: []string{"/a/b"}, Prompt: "0"})}, `warmpath: dialects[0] (/a/b): prompt: "0": "0" is no field number`},
	} {
		_, err := New("warmpath:///127.0.0.1:1", tt.options...)
		require.EqualError(t, err, tt.want)
	}
	cc, err := New("warmpath:///127.0.0.1:1", WithPolicy(consistenthash.Config{}), WithConfig(`{"max_attempts":1}`),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	require.NoError(t, cc.Close())
}
