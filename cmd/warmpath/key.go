package main

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// keyOf returns what a policy orders the replicas by: the kind, and a sentence.
func keyOf(c *policy.Config, q *policy.Request) (kind, sentence string) {
	switch cmp.Or(c.Policy.Name, policy.Default) {
	case consistenthash.Name:
		return ringKey(q)
	case prefixaffinity.Name:
		var config prefixaffinity.Config
		if err := policy.Decode(c.Policy.Config, &config); err != nil {
			return "", ""
		}
		return prefixKey(config.WithDefaults(), q)
	case kvaware.Name:
		var config kvaware.Config
		if err := policy.Decode(c.Policy.Config, &config); err != nil {
			return "", ""
		}
		config = config.WithDefaults()
		return prefixKey(prefixaffinity.Config{
			BlockTokens: config.BlockTokens, StickySessions: config.StickySessions,
		}, q)
	}
	return "", ""
}

func ringKey(q *policy.Request) (kind, sentence string) {
	switch {
	case q.Session != "":
		return "session", fmt.Sprintf("the session %s, %#016x on the ring", quote(q.Session), consistenthash.Hash(q.Session))
	case q.ID != "":
		return "request_id", fmt.Sprintf("the request id %s, since there is no session, %#016x on the ring", quote(q.ID),
			consistenthash.Hash(q.ID))
	}
	return "", "none: give --session or --request-id"
}

func prefixKey(c prefixaffinity.Config, q *policy.Request) (kind, sentence string) {
	switch {
	case q.Session != "" && q.Prompt.Empty():
		return "session", fmt.Sprintf("the session %s, since there is no prompt", quote(q.Session))
	case q.Prompt.Empty():
		return "", "none: give --prompt, --prompt-file or --session"
	case q.Session != "" && c.StickySessions:
		return "session", fmt.Sprintf("the session %s, because of sticky_sessions", quote(q.Session))
	case c.OnMiss == prefixaffinity.OnMissSmallest:
		return "", "none: on_miss smallest goes by how much was sent where"
	}
	seed := kvindex.SeedFor(q.Model, q.Adapter, q.CacheSalt)
	n, unit, hash := min(c.BlockTokens, len(q.Prompt.Tokens)), "token", uint64(0)
	if n > 0 {
		hash = kvindex.AppendTokens(nil, q.Prompt.Tokens[:n], n, seed)[0]
	} else {
		n, unit = min(rendezvous.GrainOf(c.BlockTokens).Bytes, len(q.Prompt.Text)), "byte"
		hash = kvindex.AppendText(nil, q.Prompt.Text[:n], n, seed)[0]
	}
	return "prompt_block", fmt.Sprintf("block 0 of the prompt (%s), %#016x; a client that has seen many prompts "+
		"takes the first block that few of them share",
		counted(n, unit), hash)
}

// quote shortens what a user typed for one line.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
