package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/balancer"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/tokenize"
	_ "github.com/warmpath/warmpath/tokenizers"
)

// members is the fleet that the flags name.
func (e *explain) members(c *cobra.Command) (members []router.Member, err error) {
	list, file := c.Flags().Changed("replicas"), c.Flags().Changed("fleet")
	var replicas []policy.Attributes
	switch {
	case list == file:
		return nil, usagef("one of --replicas and --fleet is required, and not both")
	case file:
		if replicas, err = fleetfile.Load(e.fleet); err != nil {
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
		members = append(members, router.Member{Attributes: r})
	}
	return members, nil
}

// parseReplicas reads a list whose entries are ids or what fleet.ParseList takes.
func parseReplicas(list string) ([]policy.Attributes, error) {
	entries := strings.Split(list, ",")
	for i, id := range entries {
		if id = strings.TrimSpace(id); id != "" && !strings.ContainsAny(id, ":=") {
			entries[i] = fmt.Sprintf("%s=replica-%d:1", id, i) // nothing is sent there
		}
	}
	replicas, err := fleet.ParseList(strings.Join(entries, ","))
	if err != nil {
		return nil, fmt.Errorf("%w; an entry is an id, host:port or id=host:port", err)
	}
	return replicas, nil
}

// load is the configuration with the policy that the flags name.
func (e *explain) load() (*policy.Config, error) {
	var data []byte
	if e.config != "" {
		var err error
		if data, err = fleetfile.Read(e.config); err != nil {
			return nil, usagef("--config: %w", err)
		}
	}
	if e.policy != "" {
		if err := oneOf("policy", e.policy, policy.Names()); err != nil {
			return nil, err
		}
	}
	var config *policy.Config
	raw, err := yaml.YAMLToJSONStrict(data)
	if err == nil {
		config, err = policy.ParseConfig(raw)
	}
	if err == nil {
		err = balancer.Check(string(raw)) // what only a channel reads too
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

// readRequest completes the request key.
func (e *explain) readRequest(c *cobra.Command) error {
	if e.promptFile != "" {
		if c.Flags().Changed("prompt") {
			return usagef("--prompt and --prompt-file exclude each other")
		}
		data, err := readPrompt(c.InOrStdin(), e.promptFile)
		if err != nil {
			return usagef("--prompt-file: %w", err)
		}
		e.prompt = string(data)
	}
	e.request.Session = requestkey.Session(e.request.Session)
	e.request.SetPrompt(policy.Prompt{Text: e.prompt})
	return nil
}

func readPrompt(stdin io.Reader, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(path)
}

// shownTokens is how many tokens explain prints.
const shownTokens = 16

// tokens is the tokenizer that a config names; it keeps what it found for the one
// prompt that is asked about.
type tokens struct {
	*tokenize.Prompts
	first []uint32
	err   error
}

// openTokens opens the tokenizer of a config, nil where there is none.
func openTokens(config *policy.Config) (*tokens, error) {
	c, err := tokenize.ParseConfig(config.Tokenizer)
	if c == nil || err != nil {
		return nil, err
	}
	p, err := tokenize.Open(*c, tokenize.Options{
		Timeout: time.Duration(config.PrepareTimeout), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return &tokens{Prompts: p}, nil
}

// Tokenize implements [router.Tokenizer].
func (t *tokens) Tokenize(ctx context.Context, q *policy.Request) (all []uint32, err error) {
	all, t.err = t.Prompts.Tokenize(ctx, q)
	t.first = all[:min(len(all), shownTokens)]
	return all, t.err
}
