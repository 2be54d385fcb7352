package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/balancer"
	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/routing"
)

// maxInput bounds the files that explain reads.
const maxInput = 64 << 20

type explain struct {
	policy     string
	replicas   string
	fleet      string
	config     string
	session    string
	requestID  string
	prompt     string
	promptFile string
	model      string
	adapter    string
	salt       string
	seed       uint64
	json       bool
}

// explanation is what explain prints with --json. Its first four fields are part of the command's contract.
type explanation struct {
	Policy        string         `json:"policy"`
	Replica       string         `json:"replica"`
	Fallbacks     []string       `json:"fallbacks"`
	Reason        routing.Reason `json:"reason"`
	Place         int            `json:"place"` // in the order of all clients; -1 where the policy has none
	MatchedTokens int            `json:"matched_tokens"`
	PromptTokens  int            `json:"prompt_tokens"`
	FirstTokens   []uint32       `json:"first_tokens,omitempty"`    // of the prompt, where a tokenizer is configured
	TokenizeError string         `json:"tokenizer_error,omitempty"` // why the prompt stayed text
	Key           string         `json:"key"`                       // what the order is made of, in words; "" where nothing is
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
	f.StringVar(&e.policy, "policy", "", "the `policy`: "+strings.Join(policy.Names(), ", ")+"; default: the config's, else "+policy.Default)
	f.StringVar(&e.replicas, "replicas", "", "the fleet: `ids`, or host:port, or id=host:port, separated by commas")
	f.StringVar(&e.fleet, "fleet", "", "the fleet as a fleet `file`")
	f.StringVar(&e.config, "config", "", "the channel's configuration, a YAML or JSON `file`")
	f.StringVar(&e.session, "session", "", "`id` of the session")
	f.StringVar(&e.requestID, "request-id", "", "`id` of the request")
	f.StringVar(&e.prompt, "prompt", "", "the prompt's `text`")
	f.StringVar(&e.promptFile, "prompt-file", "", "the prompt's text from a `file`, - for standard input")
	f.StringVar(&e.model, "model", "", "`name` of the model")
	f.StringVar(&e.adapter, "adapter", "", "`name` of the LoRA adapter")
	f.StringVar(&e.salt, "cache-salt", "", "`salt` of the prefix cache")
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
	request, err := e.request(c)
	if err != nil {
		return nil, "", err
	}
	tokens, err := openTokens(config.Tokenizer)
	if err != nil {
		return nil, "", usagef("--config: %s: %w", e.config, err)
	}
	router, err := config.NewRouter(func(o *routing.Options) {
		o.Rand = rand.New(rand.NewPCG(e.seed, e.seed))
		if tokens != nil {
			o.Tokenizer = tokens
		}
	})
	if err != nil {
		return nil, "", usageError{err}
	}
	router.SetFleet(members)
	for _, m := range members {
		router.SetConnected(m.ID, true)
	}
	x, err := ask(c.Context(), router, request)
	if err != nil {
		return nil, "", errors.Join(err, router.Close())
	}
	x.Policy = config.Policy.Name
	if tokens != nil {
		x.FirstTokens = tokens.first
		if tokens.err != nil {
			x.TokenizeError = tokens.err.Error()
		}
	}
	text := ""
	x.Key, text = keyOf(config, router, request)
	return x, e.words(x, request, len(members), text), router.Close()
}

// ask picks again and again, each time as if the replica before had failed, until one comes a second time.
func ask(ctx context.Context, router *routing.Router, q *routing.Request) (*explanation, error) {
	x := &explanation{Fallbacks: []string{}}
	for {
		var b routing.Booking
		if err := router.Pick(ctx, q, &b); err != nil {
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
		q.NextAttempt(d.Replica)
	}
}

// members is the fleet that the flags name.
func (e *explain) members(c *cobra.Command) (members []routing.Member, err error) {
	list, file := c.Flags().Changed("replicas"), c.Flags().Changed("fleet")
	var replicas []fleet.Replica
	switch {
	case list == file:
		return nil, usagef("one of --replicas and --fleet is required, and not both")
	case file:
		if replicas, err = fleet.Load(e.fleet); err != nil {
			return nil, usagef("--fleet: %w", err)
		}
	default:
		if replicas, err = parseReplicas(e.replicas); err != nil {
			return nil, usagef("--replicas: %w", err)
		}
	}
	if len(replicas) == 0 {
		return nil, usagef("--fleet: %s has no replicas", e.fleet)
	}
	for _, r := range replicas {
		members = append(members, routing.Member{Attributes: r.Attributes()})
	}
	return members, nil
}

// parseReplicas reads a list whose entries are ids or what fleet.ParseList takes.
func parseReplicas(list string) ([]fleet.Replica, error) {
	var replicas []fleet.Replica
	seen := map[string]bool{}
	var withAddress []string
	for i, entry := range strings.Split(list, ",") {
		entry = strings.TrimSpace(entry)
		r := fleet.Replica{ID: entry, Address: entry}
		switch {
		case entry == "":
			return nil, fmt.Errorf("entry %d of %q is empty; want an id, host:port or id=host:port", i+1, list)
		case strings.ContainsAny(entry, ":="):
			withAddress = append(withAddress, entry)
			many, err := fleet.ParseList(strings.Join(withAddress, ","))
			if err != nil {
				return nil, fmt.Errorf("%w; want an id, host:port or id=host:port", err)
			}
			r = many[len(many)-1]
		case !isID(entry):
			return nil, fmt.Errorf("entry %d of %q: an id is printable ASCII without blanks", i+1, list)
		}
		if seen[r.ID] {
			return nil, fmt.Errorf("%q is there twice; ids are unique", r.ID)
		}
		seen[r.ID] = true
		replicas = append(replicas, r)
	}
	return replicas, nil
}

func isID(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f })
}

// load is the configuration with the policy that the flags name.
func (e *explain) load() (*policy.Config, error) {
	var data []byte
	if e.config != "" {
		var err error
		if data, err = readFile(e.config); err != nil {
			return nil, usagef("--config: %w", err)
		}
	}
	if e.policy != "" {
		if err := oneOf("policy", e.policy, policy.Names()); err != nil {
			return nil, err
		}
	}
	config, err := policy.ParseYAML(data)
	if err == nil {
		err = checkHosted(*config)
	}
	if err != nil {
		return nil, usagef("--config: %s: %w", e.config, err)
	}
	if e.policy == "" || e.policy == config.Policy.Name {
		return config, nil
	}
	if len(config.Policy.Config) > 0 { // only a policy that the file names has one, if only {}
		return nil, usagef("--policy: %s is not %s, which %s names", e.policy, config.Policy.Name, e.config)
	}
	config.Policy = policy.Selection{Name: e.policy}
	return config, nil
}

// checkHosted checks what only a channel reads of a config: dialects, and where KV events come from.
func checkHosted(c policy.Config) error {
	c.Tokenizer = nil // openTokens says what is wrong with that
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return balancer.Check(string(raw))
}

// request is the request key that the flags make.
func (e *explain) request(c *cobra.Command) (*routing.Request, error) {
	q := &routing.Request{
		ID: e.requestID, Session: dialect.SessionKey(e.session), Model: e.model, Adapter: e.adapter, CacheSalt: e.salt,
	}
	text := e.prompt
	if e.promptFile != "" {
		if c.Flags().Changed("prompt") {
			return nil, usagef("--prompt and --prompt-file exclude each other")
		}
		data, err := readPrompt(c.InOrStdin(), e.promptFile)
		if err != nil {
			return nil, usagef("--prompt-file: %w", err)
		}
		text = string(data)
	}
	q.SetPrompt(routing.Prompt{Text: text})
	return q, nil
}

func readPrompt(stdin io.Reader, path string) ([]byte, error) {
	if path != "-" {
		return readFile(path)
	}
	return readAll(stdin, "standard input")
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, path)
}

func readAll(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err == nil && len(data) > maxInput {
		err = fmt.Errorf("%s is larger than %d MiB", name, maxInput>>20)
	}
	return data, err
}

// words are the explanation for people.
func (e *explain) words(x *explanation, q *routing.Request, n int, key string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s sends the request to %s.\n\n", x.Policy, x.Replica)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("reason", "%s: %s", x.Reason, cmp.Or(meaning[x.Reason], "the policy's own word"))
	if key != "" {
		line("key", "%s", key)
	}
	if x.Place >= 0 {
		line("place", "%d of %d in the order that every client computes alike for this key", x.Place+1, n)
	}
	switch {
	case len(x.Fallbacks) == 0:
		line("next", "nobody: the policy uses no other replica for this request")
	default:
		line("next", "%s, each when those before it are full, gone or have failed", strings.Join(x.Fallbacks, ", then "))
	}
	if q.PromptTokens > 0 {
		how := "4 bytes each"
		if len(x.FirstTokens) > 0 {
			how = fmt.Sprintf("of the tokenizer, from %v on", x.FirstTokens)
		}
		line("prompt", "%d tokens (%s), %d of them believed cached there", q.PromptTokens, how, x.MatchedTokens)
	}
	if x.TokenizeError != "" {
		line("tokenizer", "failed: %s", x.TokenizeError)
	}
	line("fleet", "%d replicas, all taken to be connected and idle; nothing was sent before", n)
	return b.String()
}

// meaning is what the reasons mean.
var meaning = map[routing.Reason]string{
	routing.ReasonRoundRobin:   "its turn; a client begins at random, here by --seed",
	routing.ReasonLeastOfTwo:   "two drawn at random, here by --seed, and the one with fewer requests under way taken",
	routing.ReasonRing:         "the key's own replica, the first clockwise from the key on the hash ring",
	routing.ReasonRingFallback: "the next on the hash ring, since those before it may not have the request",
	routing.ReasonPrefixMatch:  "it holds the longest known prefix of the prompt",
	routing.ReasonAgreedOrder:  "nobody is known to hold the prompt, so it goes to the first in the agreed order of its key",
	routing.ReasonAgreedSpill:  "later in the agreed order of the key, since those before it may not have the request or are loaded",
	routing.ReasonLeastLoaded:  "it has the least load",
	routing.ReasonKVCost:       "the request costs least there: prompt tokens left to compute, and the work under way",
	routing.ReasonKVNearTie:    "it costs about as little as anywhere else, so it goes to the first of these in the agreed order of its key",
	routing.ReasonNoKey:        "the request has nothing that the policy could use as key: fewer requests under way of two drawn at random, here by --seed",
}

// quote shortens what a user typed for one line.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
