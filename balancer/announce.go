package balancer

import (
	"context"
	"log/slog"

	"github.com/warmpath/warmpath/balancer/routing"
)

// announce writes the one line of a channel that has bound to the balancer with a config. A channel is known by its
// handle, or by a first call that brings none. Called without mu held.
func (b *lb) announce() {
	h := b.owner.Load()
	if h == nil {
		return
	}
	b.mu.Lock()
	c := b.config
	b.mu.Unlock()
	if h.Announces(c.text) {
		b.describe(c)
	}
}

// announceBare is announce for a channel without interceptors.
func (b *lb) announceBare() {
	b.mu.Lock()
	c, bare := b.config, b.handle == nil
	b.mu.Unlock()
	if bare {
		b.describe(c)
	}
}

func (b *lb) describe(c *lbConfig) {
	attrs := append([]slog.Attr{slog.String("target", b.opts.Target.String())}, c.Attrs()...)
	b.logger().LogAttrs(context.Background(), slog.LevelInfo, "warmpath: the channel is bound", attrs...)
}

// warnNoKey warns once that calls have no key; method is empty for a call without interceptors.
func (b *lb) warnNoKey(method string) {
	once := &b.noKey
	if h := b.owner.Load(); h != nil {
		once = &h.NoKey
	}
	once.Do(func() {
		binding := b.binding.Load()
		if method == "" && binding.Uses&routing.UsesPrompt != 0 {
			return // warnBare has warned
		}
		b.logger().Warn("warmpath: a call carries no key that the policy routes by, and is routed by load; this is logged once",
			"target", b.opts.Target.String(), "policy", binding.Policy, "method", method,
			"hint", "use client.WithSession or a metadata key of session_keys, or set in dialects which field is the prompt")
	})
}

func (b *lb) warnBare() {
	b.bareOnce.Do(func() {
		b.logger().Warn("warmpath: the policy looks at prompts, and calls come without the interceptors of client.New or client.DialOptions: " +
			"they are routed by session, or else by load")
	})
}
