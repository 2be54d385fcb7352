package balancer

import (
	"errors"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// router returns a Router for a configuration that is not the one in force, else
// nil. The first of a new balancer is the one that the channel's handle kept, if
// there is one. Called with mu held.
func (b *lb) router(c *lbConfig, h *call.Handle) (*router.Router, error) {
	old := b.binding.Load()
	if old != nil && old.Key == c.key {
		return nil, nil
	}
	if old == nil && h != nil {
		if r := h.Take(c.key); r != nil {
			return r, nil
		}
	}
	return c.newRouter(h)
}

// newRouter builds a Router, and its tokenizer where there is one.
func (c *lbConfig) newRouter(h *call.Handle) (*router.Router, error) {
	if c.tokenizer == nil {
		return router.FromConfig(c.Config, nil)
	}
	var o tokenize.Options
	if h != nil {
		o.Logger = h.Logger
	}
	t, err := tokenize.Open(*c.tokenizer, o)
	if err != nil {
		return nil, err
	}
	r, err := router.FromConfig(c.Config, func(o *router.Options) { o.Tokenizer = t })
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return r, nil
}

// configure puts the configuration and the members into force. r is nil where
// the Router stays the same. Called with mu held.
func (b *lb) configure(c *lbConfig, h *call.Handle, r *router.Router) {
	attach := h != nil && b.owner.Load() == nil
	if attach || b.config == nil || b.config.key != c.key {
		b.table = dialects(c, h)
	}
	b.config = c
	b.owner.Store(h)
	b.use(r)
	if attach {
		h.Attach(b.binding.Load(), b.opts.ChannelzParent)
	}
}

// use brings a Router, nil for the one in use, up to date and makes it the one
// in use. Called with mu held.
func (b *lb) use(r *router.Router) {
	old := b.binding.Load()
	if r == nil {
		r = old.Router
	}
	if err := r.Rollout.Set(b.config.Rollout()); err != nil {
		logger.Error(err) // of a Router that is not ours
	}
	r.Fleet.Set(b.endpoints.members)
	b.endpoints.connect(r)
	next := &call.Binding{
		Router:      r,
		Config:      b.config.Config,
		Telemetry:   b.recorder(),
		Policy:      b.config.Deciding(),
		Central:     b.attached.central(&b.config.Adoption),
		Uses:        b.uses(r),
		Dialects:    b.table,
		SessionKeys: b.config.sessions,
		PriorityKey: strings.ToLower(b.config.PriorityKey),
		Abort:       b.abort,
		NeedsPrompt: b.config.RequirePrompt && r.Uses()&policy.UsesPrompt != 0,
		NoKey:       b.warnNoKey,
		Key:         b.config.key,
	}
	b.attached.attach(b, r)
	if old != nil && old.Router == r && old.Uses == next.Uses && old.Telemetry == next.Telemetry &&
		old.Dialects == next.Dialects && old.Central == next.Central && old.Policy == next.Policy {
		return
	}
	b.binding.Store(next)
	b.attached.observe(next)
	if old == nil {
		return
	}
	if h := b.owner.Load(); h != nil {
		h.Replace(old, next)
	}
	if old.Router != r {
		// Its queued calls go to gRPC and meet the new Router in the picker.
		go b.retire(old.Router)
	}
}

// dialects are those of the config, and the application's where the config names none.
func dialects(c *lbConfig, h *call.Handle) *requestkey.Table {
	if h == nil || len(h.Dialects) == 0 {
		return c.dialects
	}
	t, err := c.dialects.With(h.Dialects...)
	if err != nil { // the application got the error when it dialled
		return c.dialects
	}
	return t
}

// uses is what a request key must hold: what the policy looks at, and the model and adapter where replicas declare
// some. Called with mu held.
func (b *lb) uses(r *router.Router) policy.Uses {
	if b.endpoints.declareModels() {
		return r.Uses() | requestkey.WantModel
	}
	return r.Uses()
}

// serves reports whether a handle is that of the balancer's channel.
func (b *lb) serves(h *call.Handle) bool {
	if own := b.owner.Load(); own != nil {
		return own == h
	}
	if !b.bind(h) {
		return false
	}
	b.mu.Lock()
	c := b.config
	b.mu.Unlock()
	b.announce(c)
	return true
}

// bind attaches the balancer to the handle that a pick brought along, with the Router that the handle kept if there is
// one. It reports whether the handle is that of the balancer's channel: a pick may bring that of another one, in whose
// attempt the call was made.
func (b *lb) bind(h *call.Handle) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if own := b.owner.Load(); own != nil || b.closed {
		return own == h
	}
	if !h.Owns(b.opts.ChannelzParent, b.target) {
		return false
	}
	b.table = dialects(b.config, h)
	b.owner.Store(h)
	b.use(h.Take(b.config.key))
	h.Attach(b.binding.Load(), b.opts.ChannelzParent)
	return true
}

func (b *lb) recorder() *telemetry.Recorder {
	if h := b.owner.Load(); h != nil {
		return h.Telemetry
	}
	return telemetry.Default()
}
