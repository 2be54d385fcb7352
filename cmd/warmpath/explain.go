package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

type explain struct {
	policy, replicas, fleet, config string
	request                         policy.Request
	prompt, promptFile              string
	seed                            uint64
	json                            bool
}

// explanation is what explain prints with --json. Its first four fields are part of the command's contract.
type explanation struct {
	Policy        string        `json:"policy"`
	Replica       string        `json:"replica"`
	Fallbacks     []string      `json:"fallbacks"`
	Reason        policy.Reason `json:"reason"`
	Place         int           `json:"place"` // in the order of all clients; -1 where the policy has none
	MatchedTokens int           `json:"matched_tokens"`
	PromptTokens  int           `json:"prompt_tokens"`
	FirstTokens   []uint32      `json:"first_tokens,omitempty"`    // of the prompt, where a tokenizer is configured
	TokenizeError string        `json:"tokenizer_error,omitempty"` // why the prompt stayed text
}

func newExplain() *cobra.Command {
	var e explain
	c := &cobra.Command{
		Use:   "explain",
		Short: "Say which replica a request goes to, which come next, and why, without connecting to any",
		Long: "explain asks a policy as a client does that has just started: no request was sent before, every replica is\n" +
			"connected and idle.",
		RunE: func(c *cobra.Command, _ []string) error {
			x, words, err := e.explain(c)
			if err != nil {
				return err
			}
			if e.json {
				return printJSON(c.OutOrStdout(), x)
			}
			_, err = io.WriteString(c.OutOrStdout(), words)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&e.policy, "policy", "",
		"the `policy`: "+strings.Join(policy.Names(), ", ")+"; default: the config's, else "+policy.Default)
	f.StringVar(&e.replicas, "replicas", "", "the fleet: `ids`, or host:port, or id=host:port, separated by commas")
	f.StringVar(&e.fleet, "fleet", "", "the fleet as a fleet `file`")
	f.StringVar(&e.config, "config", "", "the channel's configuration, a YAML or JSON `file`")
	f.StringVar(&e.request.Session, "session", "", "`id` of the session")
	f.StringVar(&e.request.ID, "request-id", "", "`id` of the request")
	f.StringVar(&e.prompt, "prompt", "", "the prompt's `text`")
	f.StringVar(&e.promptFile, "prompt-file", "", "the prompt's text from a `file`, - for standard input")
	f.StringVar(&e.request.Model, "model", "", "`name` of the model")
	f.StringVar(&e.request.Adapter, "adapter", "", "`name` of the LoRA adapter")
	f.StringVar(&e.request.CacheSalt, "cache-salt", "", "`salt` of the prefix cache")
	f.Uint64Var(&e.seed, "seed", 1, "seed of the policies that draw at random")
	f.BoolVar(&e.json, "json", false, "print one JSON object on standard output and nothing else there")
	return c
}

func (e *explain) explain(c *cobra.Command) (*explanation, string, error) {
	members, err := e.members(c)
	if err != nil {
		return nil, "", err
	}
	config, err := e.load()
	if err != nil {
		return nil, "", err
	}
	if err := e.readRequest(c); err != nil {
		return nil, "", err
	}
	tokens, err := openTokens(config)
	if err != nil {
		return nil, "", usagef("--config: %s: %w", e.config, err)
	}
	rt, err := router.FromConfig(config, func(o *router.Options) {
		o.Rand = rand.New(rand.NewPCG(e.seed, e.seed))
		if tokens != nil {
			o.Tokenizer = tokens
		}
	})
	if err != nil {
		return nil, "", usageError{err}
	}
	rt.Fleet.Set(members)
	for _, m := range members {
		rt.Fleet.SetConnected(m.ID, true)
	}
	x, err := ask(c.Context(), rt, &e.request)
	if err != nil {
		return nil, "", errors.Join(err, rt.Close())
	}
	x.Policy = config.Policy.Name
	if tokens != nil {
		x.FirstTokens = tokens.first
		if tokens.err != nil {
			x.TokenizeError = tokens.err.Error()
		}
	}
	return x, x.words(&e.request, len(members)), rt.Close()
}

// ask picks again and again, each time as if the replica before had failed, until one comes a second time.
func ask(ctx context.Context, rt *router.Router, q *policy.Request) (*explanation, error) {
	x := &explanation{Fallbacks: []string{}}
	for {
		var b router.Reservation
		if err := rt.Reserve(ctx, q, &b, router.How{NoWait: true}); err != nil {
			if x.Replica != "" {
				return x, nil
			}
			return nil, err
		}
		b.Release()
		d := b.Decision
		switch id := d.Replica.ID; {
		case x.Replica == "":
			x.Replica, x.Reason, x.Place, x.MatchedTokens = id, d.Reason, d.Place, d.MatchedTokens
			x.PromptTokens = q.PromptTokens // by now of the tokenizer, if there is one
		case id == x.Replica || slices.Contains(x.Fallbacks, id):
			return x, nil
		default:
			x.Fallbacks = append(x.Fallbacks, id)
		}
		router.NextAttempt(q, d.Replica)
	}
}

// words are the explanation for people.
func (x *explanation) words(q *policy.Request, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s sends the request to %s.\n\n", x.Policy, x.Replica)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("reason", "%s: %s", x.Reason, cmp.Or(meaning[x.Reason], "the policy's own word"))
	if x.Place >= 0 {
		line("place", "%d of %d in the order that every client computes alike for this key", x.Place+1, n)
	}
	if len(x.Fallbacks) == 0 {
		line("next", "none: the policy uses no other replica for this request")
	} else {
		line("next", "%s, each when those before it are full, gone or have failed", strings.Join(x.Fallbacks, ", then "))
	}
	if q.PromptTokens > 0 {
		how := "4 bytes each"
		if len(x.FirstTokens) > 0 {
			how = fmt.Sprintf("of the tokenizer, from %v on", x.FirstTokens)
		}
		line("prompt", "%s (%s), %d of them cached there", counted(q.PromptTokens, "token"), how, x.MatchedTokens)
	}
	if x.TokenizeError != "" {
		line("tokenizer", "failed: %s", x.TokenizeError)
	}
	line("fleet", "%s, taken to be connected and idle; nothing was sent before", counted(n, "replica"))
	return b.String()
}

// meaning is what the reasons mean.
var meaning = map[policy.Reason]string{
	policy.ReasonRoundRobin:   "its turn; a client begins at random, here by --seed",
	policy.ReasonLeastOfTwo:   "two drawn at random, here by --seed, and the one with fewer requests under way taken",
	policy.ReasonRing:         "the key's own replica, the first clockwise from the key on the hash ring",
	policy.ReasonRingFallback: "the next on the hash ring, since those before it may not have the request",
	policy.ReasonPrefixMatch:  "more of the prompt is cached there than most prompts share",
	policy.ReasonRendezvous:   "the prompt's home, the first in the rendezvous order of its key, where other clients send it, too",
	policy.ReasonRendezvousSpill: "later in the rendezvous order of the key, since those before it may not serve " +
		"it or are loaded",
	policy.ReasonLeastLoaded: "it has the least load",
	policy.ReasonKVCost:      "the request costs least there, or about the least and most of its prompt is cached: prompt tokens left to compute, and the work under way",
	policy.ReasonKVNearTie:   "it costs and saves about as much as others: the first of these in the rendezvous order of its key",
	policy.ReasonNoKey: "the request has no key for the policy (see --session, --request-id, --prompt): fewer requests " +
		"under way of two drawn at random, by --seed",
}
