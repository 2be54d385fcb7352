package policy_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/balancer/policytest"
	_ "github.com/warmpath/warmpath/internal/builtin"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

func TestParseConfig(t *testing.T) {
	rr := policy.Config{Policy: policy.Selection{Name: "round_robin", Config: json.RawMessage("{}")}}.WithDefaults()
	with := func(edit func(*policy.Config)) policy.Config {
		c := rr
		edit(&c)
		return c
	}
	for name, c := range map[string]struct {
		json string
		want policy.Config
	}{
		"the defaults": {`{"policy":{"round_robin":{}}}`, rr},
		"the defaults, written out": {`{"policy":{"round_robin":{}},"max_ongoing_requests":0,"max_queued_requests":1000,"max_attempts":3,
			"session_keys":["session_id","x-session-id"],"prepare_timeout":"100ms","node":"","zone":""}`, rr},
		"null keeps the default": {`{"policy":{"round_robin":{}},"max_attempts":null,"session_keys":null,"prepare_timeout":null,"dialects":null}`, rr},
		"zero is the default":    {`{"policy":{"round_robin":{}},"max_attempts":0,"max_ongoing_requests":0,"prepare_timeout":"0s"}`, rr},
		"everything": {`{"policy":{"round_robin":{}},"max_ongoing_requests":64,"max_queued_requests":"off","max_attempts":1,"session_keys":["User-Id"],
			"drain_grace":"off","prepare_timeout":"1.5s","node":"n1","zone":"z1","dialects":[{"a":1}]}`, with(func(c *policy.Config) {
			c.MaxOngoingRequests, c.MaxQueuedRequests, c.MaxAttempts, c.DrainGrace = 64, policy.Off, 1, policy.Off
			c.SessionKeys = []string{"User-Id"}
			c.PrepareTimeout = policy.Duration(1500 * time.Millisecond)
			c.Node, c.Zone, c.Dialects = "n1", "z1", json.RawMessage(`[{"a":1}]`)
		})},
		"no session key": {`{"policy":{"round_robin":{}},"session_keys":[]}`, with(func(c *policy.Config) { c.SessionKeys = []string{} })},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := policy.ParseConfig([]byte(c.json))
			require.NoError(t, err)
			require.Equal(t, c.want, *got)
			again, err := json.Marshal(got)
			require.NoError(t, err)
			round, err := policy.ParseConfig(again)
			require.NoError(t, err)
			require.Equal(t, c.want, *round)
		})
	}
	require.EqualValues(t, 1000, rr.MaxQueuedRequests)
}

func TestParseConfigRefuses(t *testing.T) {
	in := func(s string) string { return `{"policy":{"round_robin":{}},` + s + `}` }
	for name, c := range map[string]struct{ json, want string }{
		"not an object":             {`[]`, "the config is a list, not an object"},
		"no JSON":                   {`{"policy"`, "at byte 9: unexpected end"},
		"broken":                    {`{"policy":}`, "at byte 11"},
		"trailing data":             {`{"policy":{"round_robin":{}}} {}`, "after top-level value"},
		"unknown field":             {in(`"max_atempts":3`), `unknown field "max_atempts"`},
		"unknown field deeper":      {in(`"ejection":{"max_attempts":3}`), `config: ejection: unknown field "max_attempts"`},
		"field in other case":       {in(`"Max_Attempts":3`), `config: unknown field "Max_Attempts"`},
		"field twice":               {in(`"max_attempts":3,"max_attempts":4`), "config: max_attempts: it is there twice"},
		"field twice deeper":        {in(`"ejection":{"failures":3,"failures":4}`), "config: ejection.failures: it is there twice"},
		"field twice in the policy": {`{"policy":{"consistent_hash":{"max_load_factor":1,"max_load_factor":2}}}`, "policy.consistent_hash: max_load_factor: it is there twice"},
		"policy twice":              {in(`"policy":{}`), "config: policy: it is there twice"},
		"YAML":                      {"policy: {round_robin: {}}", "it is not JSON: at byte 1"},
		"unknown policy":            {`{"policy":{"rr":{}}}`, `"rr" is unknown; choose one of consistent_hash, `},
		"two policies":              {`{"policy":{"round_robin":{},"consistent_hash":{}}}`, "name one"},
		"one policy twice":          {`{"policy":{"round_robin":{},"round_robin":{}}}`, "policy: round_robin: it is there twice"},
		"policy without a name":     {`{"policy":{"":{}}}`, "its name is empty"},
		"policy as a word":          {`{"policy":"round_robin"}`, "policy: it is not an object"},
		"max_ongoing negative":      {in(`"max_ongoing_requests":-1`), "max_ongoing_requests: -1"},
		"max_queued negative":       {in(`"max_queued_requests":-1`), `max_queued_requests: it is a number -1, not a number of at least 0 or "off"`},
		"max_queued in pieces":      {in(`"max_queued_requests":1.5`), "max_queued_requests: 1.5 is neither a whole number"},
		"max_attempts":              {in(`"max_attempts":11`), "max_attempts: 11 is not between 0 and 10"},
		"max_attempts of a word":    {in(`"max_attempts":"three"`), "max_attempts: it is a string"},
		"max_attempts in pieces":    {in(`"max_attempts":2.5`), "max_attempts: it is a number 2.5, not a whole number"},
		"max_attempts too large":    {in(`"max_attempts":1e99`), "max_attempts"},
		"session_keys of a word":    {in(`"session_keys":"x"`), "session_keys: it is a string, not a list"},
		"session_keys empty":        {in(`"session_keys":[""]`), "session_keys: \"\" is no metadata key"},
		"session_keys with space":   {in(`"session_keys":["session id"]`), "session_keys"},
		"session_keys binary":       {in(`"session_keys":["id-bin"]`), "binary"},
		"session_keys twice":        {in(`"session_keys":["session-id","Session_ID"]`), "the same key"},
		"session_keys too many":     {in(`"session_keys":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]`), "17 are more than 16"},
		"prepare_timeout number":    {in(`"prepare_timeout":100`), `prepare_timeout: it is a number, not a duration like "1.5s"`},
		"prepare_timeout bare":      {in(`"prepare_timeout":"100"`), `prepare_timeout: it is a string "100"`},
		"prepare_timeout negative":  {in(`"prepare_timeout":"-1s"`), "prepare_timeout: -1s"},
		"retry_ratio too large":     {in(`"retry_ratio":1.5`), "retry_ratio: 1.5"},
		"retry_ratio negative":      {in(`"retry_ratio":-0.5`), "retry_ratio: it is a number -0.5"},
		"backoff too long":          {in(`"backoff":{"initial":"2m"}`), "backoff.initial: 2m0s"},
		"backoff shrinks":           {in(`"backoff":{"multiplier":0.5}`), "backoff.multiplier: 0.5"},
		"backoff maximum":           {in(`"backoff":{"initial":"1s","maximum":"10ms"}`), "backoff.maximum: 10ms"},
		"first_token_timeout":       {in(`"first_token_timeout":"-1s"`), "first_token_timeout: -1s"},
		"prepare_timeout too long":  {in(`"prepare_timeout":"61s"`), "prepare_timeout: 1m1s"},
		"node of a number":          {in(`"node":5`), "node: it is a number"},
		"round_robin has none":      {`{"policy":{"round_robin":{"seed":1}}}`, `policy.round_robin: unknown field "seed"`},
		"num_virtual_nodes":         {`{"policy":{"consistent_hash":{"num_virtual_nodes":10001}}}`, "policy.consistent_hash: num_virtual_nodes: 10001"},
		"num_virtual_nodes -5":      {`{"policy":{"consistent_hash":{"num_virtual_nodes":-5}}}`, "policy.consistent_hash: num_virtual_nodes: -5"},
		"num_virtual_nodes many":    {`{"policy":{"consistent_hash":{"num_virtual_nodes":"many"}}}`, "policy.consistent_hash: num_virtual_nodes: it is a string"},
		"num_fallback_replicas":     {`{"policy":{"consistent_hash":{"num_fallback_replicas":-1}}}`, "policy.consistent_hash: num_fallback_replicas: it is a number -1"},
		"max_load_factor":           {`{"policy":{"consistent_hash":{"max_load_factor":0.5}}}`, "policy.consistent_hash: max_load_factor: 0.5"},
		"require_prompt":            {in(`"require_prompt":1`), "require_prompt: it is a number, not true or false"},
		"sticky_sessions":           {`{"policy":{"kv_aware":{"sticky_sessions":true}}}`, `policy.kv_aware: unknown field "sticky_sessions"`},
		"policy config of a word":   {`{"policy":{"consistent_hash":"x"}}`, "policy.consistent_hash: the config is a string, not an object"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.ParseConfig([]byte(c.json))
			require.ErrorContains(t, err, c.want)
		})
	}
}

// A zero means the default, in Go too. Where Ray, or a reader, gives it a meaning of its own, it is refused when it is
// written out, with what to write for that meaning.
func TestZeroThatMeansSomethingElse(t *testing.T) {
	in := func(name, config string) string { return fmt.Sprintf(`{"policy":{%q:{%s}}}`, name, config) }
	for config, want := range map[string]string{
		in("consistent_hash", `"num_fallback_replicas":0`):              `num_fallback_replicas: 0 is the default, as if it were left out; write "off" for the primary only`,
		in("consistent_hash", `"num_virtual_nodes":0`):                  "num_virtual_nodes: 0 is the default, as if it were left out; write at least 1",
		in("prefix_cache_affinity", `"match_rate_threshold":0.0`):       `match_rate_threshold: 0 is the default, as if it were left out; write "off" to prefer every match`,
		in("prefix_cache_affinity", `"imbalanced_threshold":0`):         `imbalanced_threshold: 0 is the default, as if it were left out; write 0.5 for any imbalance, "off" for never`,
		in("kv_aware", `"kv_tokens":0`):                                 `kv_tokens: 0 is the default, as if it were left out; write "off" for no bound`,
		`{"max_queued_requests":0}`:                                     `max_queued_requests: 0 is the default`,
		`{"retry_ratio":0e0}`:                                           `retry_ratio: 0 is the default, as if it were left out; write "off" for no bound, max_attempts: 1 for no retries`,
		`{"drain_grace":"0s"}`:                                          `drain_grace: 0 is the default, as if it were left out; write "off" to keep no sessions`,
		`{"backoff":{"initial":"0"}}`:                                   `backoff.initial: 0 is the default, as if it were left out; write "1us" for no wait`,
		`{"ejection":{"failures":0}}`:                                   `ejection.failures: 0 is the default, as if it were left out; write "off" to eject no replica`,
		`{"ejection":{"max_share":0}}`:                                  `ejection.max_share: 0 is the default, as if it were left out; write failures: "off" to eject no replica`,
		`{"ejection":{"slow_start":"0m"}}`:                              `ejection.slow_start: 0 is the default`,
		`{"shadow_policy":{"consistent_hash":{"num_virtual_nodes":0}}}`: "shadow_policy.consistent_hash: num_virtual_nodes: 0 is the default",
	} {
		_, err := policy.ParseConfig([]byte(config))
		require.ErrorContains(t, err, want)
	}
	for _, config := range []string{
		in("consistent_hash", `"num_fallback_replicas":"off"`),
		in("prefix_cache_affinity", `"match_rate_threshold":"off","imbalanced_threshold":0.5`),
		in("prefix_cache_affinity", `"imbalanced_threshold":"off"`),
		`{"percentage":0}`, `{"ejection":{"failures":null}}`,
	} {
		_, err := policy.ParseConfig([]byte(config))
		require.NoError(t, err)
	}
	for _, config := range []any{
		policy.Config{}, policy.Ejection{}, consistenthash.Config{}, prefixaffinity.Config{}, kvaware.Config{},
	} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(config)) {
			if f.Type == reflect.TypeFor[policy.Limit]() {
				require.NotEmpty(t, f.Tag.Get("zero"), "%T.%s: what may be off has a zero of its own", config, f.Name)
			}
		}
	}
}

func TestNoPolicyNamed(t *testing.T) {
	for _, raw := range []string{"", "null", "{}", `{"policy":{}}`, `{"policy":null}`} {
		c, err := policy.ParseConfig([]byte(raw))
		require.NoError(t, err)
		require.Equal(t, policy.Config{}.WithDefaults(), *c)
		require.Equal(t, kvaware.Name, c.Policy.Name)
	}
	r, err := router.FromConfig(new(policy.Config), nil)
	require.NoError(t, err)
	require.Equal(t, kvaware.Name, r.Policy().Name)
	require.NoError(t, r.Close())
}

func TestParseYAML(t *testing.T) {
	c, err := policy.ParseYAML([]byte(`
policy:
  consistent_hash:
    num_virtual_nodes: 42
    num_fallback_replicas: 7
max_ongoing_requests: 64
prepare_timeout: 1.5s
dialects:
  - method: /pkg.Service/Method
`))
	require.NoError(t, err)
	require.Equal(t, "consistent_hash", c.Policy.Name)
	require.Equal(t, 64, c.MaxOngoingRequests)
	require.Equal(t, policy.Duration(1500*time.Millisecond), c.PrepareTimeout)
	require.JSONEq(t, `[{"method":"/pkg.Service/Method"}]`, string(c.Dialects))
	for yaml, want := range map[string]string{
		"max_attempts: 2\nmax_attempts: 3": "max_attempts",
		"max_atempts: 2":                   "max_atempts",
		"policy: [":                        "config",
		"policy: {consistent_hash: {num_virtual_nodes: many}}": "num_virtual_nodes",
	} {
		_, err := policy.ParseYAML([]byte(yaml))
		require.ErrorContains(t, err, want)
	}
}

func TestNewRouter(t *testing.T) {
	clock := routertest.NewClock()
	c, err := policy.ParseConfig([]byte(`{"policy":{"power_of_two_choices":null},"max_ongoing_requests":1,"max_queued_requests":"off","zone":"z1"}`))
	require.NoError(t, err)
	var o router.Options
	r, err := router.FromConfig(c, func(opts *router.Options) {
		opts.Now = clock.Now
		o = *opts
	})
	require.NoError(t, err)
	require.Equal(t, poweroftwo.Name, r.Policy().Name)
	require.Equal(t, router.Options{
		MaxOngoing: 1, MaxQueued: -1, PrepareTimeout: 100 * time.Millisecond, Zone: "z1",
	}, router.Options{
		MaxOngoing: o.MaxOngoing, MaxQueued: o.MaxQueued, PrepareTimeout: o.PrepareTimeout, Zone: o.Zone,
	})
	policytest.SetFleet(r, policytest.Fleet(1))
	require.Equal(t, "r0", policytest.Route(t, r, &policy.Request{}))
	require.NoError(t, r.Close())

	_, err = router.FromConfig(&policy.Config{Policy: policy.Selection{Name: "nosuch"}}, nil)
	require.ErrorContains(t, err, "choose one of")
}

var registered atomic.Int64

func TestRegister(t *testing.T) {
	build := func(struct{}) (policy.Policy, error) { return roundrobin.New(roundrobin.Config{}) }
	require.Panics(t, func() { policy.Register("", build) })
	require.Panics(t, func() { policy.Register[struct{}]("without a factory", nil) })
	require.Panics(t, func() { policy.Register(roundrobin.Name, build) })
	require.NotContains(t, policy.Names(), "without a factory")
	name := fmt.Sprintf("policy_test_%d", registered.Add(1)) // there is no way to unregister
	policy.Register(name, build)
	require.Panics(t, func() { policy.Register(name, build) })
	require.Contains(t, policy.Names(), name)
	require.Subset(t, policy.Names(), []string{consistenthash.Name, kvaware.Name, poweroftwo.Name, prefixaffinity.Name, roundrobin.Name})
	require.IsIncreasing(t, policy.Names())
	p, err := policy.New(name, nil)
	require.NoError(t, err)
	require.Equal(t, name, p.Name)

	empty := fmt.Sprintf("policy_test_%d", registered.Add(1))
	policy.Register(empty, func(struct{}) (policy.Policy, error) { return policy.Policy{}, nil })
	_, err = policy.ParseConfig([]byte(`{"policy":{"` + empty + `":{}}}`))
	require.ErrorContains(t, err, "policy."+empty+": it has no Choose")
}

func TestDecodeKeepsDefaults(t *testing.T) {
	for _, raw := range []string{"", "null", "{}", " \n", `{"num_fallback_replicas":null}`} {
		c := consistenthash.Config{}.WithDefaults()
		require.NoError(t, policy.Decode(json.RawMessage(raw), &c))
		require.Equal(t, consistenthash.Config{}.WithDefaults(), c)
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{
		"", "null", "{}", `{"policy":{"round_robin":{}}}`, `{"policy":{"consistent_hash":{"num_virtual_nodes":100,"max_load_factor":1.25}}}`,
		`{"policy":{"power_of_two_choices":{}},"session_keys":[],"prepare_timeout":"1.5s","dialects":[1,{"a":[]}]}`,
		`{"policy":{"a":1,"a":2}}`, `{"max_attempts":1e3}`, `{"policy":[]}`, "{} {}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := policy.ParseConfig(data)
		if err != nil {
			return
		}
		require.Equal(t, *c, c.WithDefaults(), "nothing is left to default")
		again, err := json.Marshal(c)
		require.NoError(t, err)
		round, err := policy.ParseConfig(again)
		require.NoErrorf(t, err, "%s", again)
		twice, err := json.Marshal(round)
		require.NoError(t, err)
		require.JSONEq(t, string(again), string(twice))
		r, err := router.FromConfig(c, nil)
		require.NoError(t, err)
		require.NoError(t, r.Close())
	})
}

// A policy that does not look at the prompt never pays for it.
func TestUses(t *testing.T) {
	for name, want := range map[string]policy.Uses{
		roundrobin.Name: 0, poweroftwo.Name: policy.UsesOngoing, consistenthash.Name: policy.UsesSession | policy.SharesByKey,
	} {
		p, err := policy.New(name, nil)
		require.NoError(t, err)
		require.Equal(t, want, p.Uses, name)
	}
}
