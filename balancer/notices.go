package balancer

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
)

// notices are what a channel logs. Safe for use by many goroutines.
type notices struct {
	target string
	// owner is the channel's handle; nil for a channel without interceptors, and until it is found.
	owner              atomic.Pointer[call.Handle]
	bound, noKey, bare sync.Once
}

func (n *notices) logger() *slog.Logger {
	if h := n.owner.Load(); h != nil {
		return h.Logger
	}
	return slog.Default()
}

// announce writes the one line of a channel with interceptors that is bound to the balancer with a config.
func (n *notices) announce(c *lbConfig) {
	if h := n.owner.Load(); h != nil && h.Announces(c.text) {
		n.describe(c)
	}
}

func (n *notices) describe(c *lbConfig) {
	attrs := append([]slog.Attr{slog.String("target", n.target)}, c.Attrs()...)
	n.logger().LogAttrs(context.Background(), slog.LevelInfo, "warmpath: the channel is bound", attrs...)
}

// warnNoKey warns once that calls have no key; method is empty for a call without interceptors.
func (n *notices) warnNoKey(b *call.Binding, method string) {
	once := &n.noKey
	if h := n.owner.Load(); h != nil {
		once = &h.NoKey
	}
	once.Do(func() {
		if method == "" && b.Uses&policy.UsesPrompt != 0 {
			return // warnBare has warned
		}
		n.logger().Warn("warmpath: a call carries no key that the policy routes by, and is routed by load; "+
			"this is logged once", "target", n.target, "policy", b.Policy, "method", method,
			"hint", "use client.WithSession or a metadata key of session_keys, or set in dialects which field is the prompt")
	})
}

// warnBare warns once that prompts do not reach the policy.
func (n *notices) warnBare() {
	n.bare.Do(func() {
		n.logger().Warn("warmpath: the policy looks at prompts, and calls come without the interceptors of client.New or " +
			"client.DialOptions: they are routed by session, or else by load")
	})
}
