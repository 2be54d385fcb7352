package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
)

// keyOf returns what a policy orders the replicas by: the kind, and a sentence.
func keyOf(c *policy.Config, q *policy.Request) (kind, sentence string) {
	var config struct {
		OnMiss string `json:"on_miss"`
	}
	_ = json.Unmarshal(c.Policy.Config, &config) // absent, or checked before
	name := cmp.Or(c.Policy.Name, policy.Default)
	ring, prompt := name == consistenthash.Name, name == prefixaffinity.Name || name == kvaware.Name
	switch {
	case ring && q.Session != "":
		return "session", fmt.Sprintf("the session %s, %#016x on the ring", quote(q.Session), consistenthash.Hash(q.Session))
	case ring && q.ID != "":
		return "request_id", fmt.Sprintf("the request id %s, since there is no session, %#016x on the ring", quote(q.ID),
			consistenthash.Hash(q.ID))
	case ring:
		return "", "none: give --session or --request-id"
	case !prompt:
		return "", ""
	case q.Session != "" && q.Prompt.Empty():
		return "session", fmt.Sprintf("the session %s, since there is no prompt", quote(q.Session))
	case q.Prompt.Empty():
		return "", "none: give --prompt, --prompt-file or --session"
	case config.OnMiss == string(prefixaffinity.OnMissSmallest):
		return "", "none: on_miss smallest goes by how much was sent where"
	}
	return "prompt_block", "block 0 of the prompt; a client that has seen many prompts takes the first block that few of " +
		"them share"
}

// quote shortens what a user typed for one line.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
