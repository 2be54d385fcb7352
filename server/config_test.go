package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigInThreeLines(t *testing.T) {
	c := parse(t, "deployments:\n  chat:\n    target: dns:///engines:50051\n")
	want := Config{Deployments: c.Deployments}.withDefaults()
	require.Equal(t, &want, c)
	d := c.Deployments["chat"]
	require.Equal(t, "kv_aware", d.Policy.Name)
	require.Equal(t, 3, d.MaxAttempts)
}

func TestRefusedConfigs(t *testing.T) {
	with := func(d string) string { return "deployments: {chat: {register: true, " + d + "}}" }
	for _, tt := range []struct{ text, want string }{
		{"", "deployments: there is none"},
		{"deployments: {}", "deployments: there is none"},
		{"[]", "the config is a list, not an object"},
		{"deployment: {}", `unknown field "deployment"`},
		{"a: b: c", "mapping values"},
		{"deployments: {chat: {}}", "deployments.chat: it has no replicas: give replicas, target, or register: true"},
		{"deployments: {'a b': {register: true}}", "has a blank"},
		{"deployments: {'a:b': {register: true}}", "a colon"},
		{"deployments: {'': {register: true}}", "is empty"},
		{"deployments: {chat: {register: true}, chat: {register: true}}", "chat"},
		{with("polcy: {}"), `deployments.chat: unknown field "polcy"`},
		{with("max_attempts: 11"), "deployments.chat: max_attempts: 11 is not between 0 and 10"},
		{with("policy: {nosuch: {}}"), `deployments.chat: policy: "nosuch" is unknown`},
		{with("max_ongoing_requests: x"), "deployments.chat.max_ongoing_requests: it is a string, not a whole number"},
		{with("replicas: [{id: a}]"), "deployments.chat.replicas: replicas[0].address: missing"},
		{with("replicas: 1"), "replicas: it is a number, not a list"},
		{with("target: engines"), `deployments.chat: target: "engines" is not a target like dns:///host:port`},
		{with("target: 'nosuch:///x'"), "there is no resolver for nosuch"},
		{with("target: 'warmpath-inferencepool:///chat'"), `import _ "github.com/warmpath/warmpath/resolver/kubernetes"`},
		{with("target: 'dns:///'"), `target: "dns:///" names nothing to resolve`},
		{with("health_check: 1ms"), "deployments.chat: health_check: 1ms is not between 100ms and 1h"},
		{with("replica_tls: {cert: c}"), "deployments.chat: replica_tls.cert: it needs a key"},
		{with("dialects: [{colour: red}]"), "deployments.chat: dialects: "},
		{with("tokenizer: {colour: red}"), `deployments.chat: tokenizer: unknown field "colour"`},
		{with("kv_events: 'udp://x:1'"), `deployments.chat: kv_events: "udp://x:1"`},
		{with("replicas: [{address: 'a:1', kv_events: 'udp://x:1'}]"), `deployments.chat.replicas: replicas[0].kv_events: "udp://x:1"`},
		{with("models: ['']"), "deployments.chat: models[0]: the name"},
		{"load_interval: 1ms\n" + with(""), "load_interval: 1ms is not between 10ms and 10s"},
		{"load_interval: 10\n" + with(""), `load_interval: it is a number, not a duration`},
		{"max_reservations: -1\n" + with(""), "max_reservations: -1 is not between 1"},
		{"listen: nowhere\n" + with(""), `listen: "nowhere" is not host:port`},
		{"listen: '0.0.0.0:1'\n" + with(""), "listen: 0.0.0.0:1 is not on the loopback, and there is no TLS"},
		{"listen: ':1'\n" + with(""), "is not on the loopback"},
		{"tls: {key: k}\n" + with(""), "tls.cert: missing"},
		{"tls: {cert: c}\n" + with(""), "tls.key: missing"},
		{"tls: {cert: c, key: k, client_certs: optional}\n" + with(""), "tls.client_certs: it needs a ca"},
		{"tls: {cert: c, key: k, ca: x, client_certs: maybe}\n" + with(""), `tls.client_certs: "maybe" is neither required nor optional`},
		{"tls: {certificate: c}\n" + with(""), `unknown field "certificate"`},
		{"principals: [{name: a}]\n" + with(""), "principals[0].token_file: the principal has neither token_file nor subjects"},
		{"principals: [{token_file: x}]\n" + with(""), "principals[0].name: the name"},
		{"principals: [{name: a, token_file: x}, {name: a, token_file: x}]\n" + with(""), `principals[1].name: "a" comes twice`},
		{"principals: [{name: a, subjects: [x]}]\n" + with(""), "principals[0].subjects: they need tls.ca"},
		{"principals: [{name: a, token_file: x, rate: -1}]\n" + with(""), "principals[0].rate: -1 is not between"},
		{"principals: [{name: a, token_file: x, deployments: [chta]}]\n" + with(""), `principals[0].deployments: there is no deployment "chta"`},
		{"principals: [{name: true, token_file: x}]\n" + with(""), "config: principals[0].name: it is true or false, not a string"},
		{"metrics: '0.0.0.0:1'\n" + with(""), "metrics: 0.0.0.0:1 is not on the loopback"},
	} {
		_, err := ParseConfig([]byte(tt.text))
		require.ErrorContains(t, err, tt.want, tt.text)
		require.ErrorContains(t, err, "config: ")
		require.NotContains(t, err.Error(), "\n")
	}
	parse(t, "listen: '0.0.0.0:1'\nallow_plaintext: true\n"+with(""))
	parse(t, "listen: '0.0.0.0:1'\ntls: {cert: c, key: k}\n"+with(""))
	parse(t, "listen: '[::1]:1'\n"+with(""))
	parse(t, "listen: 'localhost:0'\n"+with("replicas: null"))
}

// No text makes reading panic, and a config that is accepted can be served.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		quiet, several, "deployments:\n  chat:\n    target: dns:///engines:50051\n", "deployments: {a: {replicas: [{address: 'a:1'}], policy: null}}",
		"load_interval: 1s\ndeployments: {a: {register: true, dialects: []}}", `{"deployments":{"a":{"register":true}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig(text)
		if err != nil {
			return
		}
		for name := range c.Deployments {
			made := deploy(t, c, name, newClock().now)
			made.tick(newClock().now())
			made.close()
		}
	})
}
