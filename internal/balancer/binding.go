package balancer

import (
	"cmp"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
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
	h = cmp.Or(h, b.bare)
	if old == nil {
		if r := h.Take(c.key); r != nil {
			return r, nil
		}
	}
	return tokenize.NewRouter(c.Config, h.Logger, nil)
}

// configure puts a configuration and the members into force. r is nil where the Router stays the same, h where the
// channel has no interceptors, or its handle is not found yet. Called with mu held.
func (b *lb) configure(c *lbConfig, h *call.Handle, r *router.Router) {
	old, found := b.binding.Load(), h != nil && b.owner.Load() == nil
	rewatch := b.config != nil && b.config.HealthService != c.HealthService
	if b.config = c; rewatch {
		b.endpoints.rewatch()
	}
	b.owner.Store(h)
	next := &call.Binding{
		Config:      c.Config,
		Telemetry:   b.handle().Telemetry,
		Policy:      router.Deciding(c.Config),
		Central:     b.attached.central(&c.Adoption),
		SessionKeys: c.sessions,
		Abort:       b.abort,
		NoKey:       b.warnNoKey,
		Key:         c.key,
	}
	if r == nil {
		r, next.Dialects = old.Router, old.Dialects
	}
	if found || next.Dialects == nil {
		next.Dialects = dialects(c, h)
	}
	if err := r.Rollout.Set(c.Percentage); err != nil {
		logger.Error(err) // of a Router that is not ours
	}
	if old != nil && old.Router != r {
		r.Inherit(old.Router)
	}
	r.Fleet.Set(b.endpoints.members)
	b.endpoints.connect(r)
	next.Router, next.Uses = r, r.Uses()
	for i := range b.endpoints.members {
		if m := &b.endpoints.members[i]; len(m.Models)+len(m.Adapters) > 0 {
			next.Uses |= requestkey.WantModel
		}
		next.Ranks = next.Ranks || b.endpoints.members[i].Ranks > 1
	}
	next.Probe = b.probes(c.Config, r)
	next.NeedsPrompt = c.RequirePrompt && r.Uses()&policy.UsesPrompt != 0
	b.attached.attach(b, r)
	if old == nil || found || old.Router != r || old.Ranks != next.Ranks ||
		(old.Probe == nil) != (next.Probe == nil) || old.Config.LoadPoll != c.LoadPoll ||
		old.Uses != next.Uses || old.Central != next.Central || old.Policy != next.Policy {
		b.binding.Store(next)
		b.attached.observe(next)
		if h != nil {
			h.Bind(old, next, b.opts.ChannelzParent)
		}
	}
	if old != nil && old.Router != r {
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

// serves reports whether a handle that a pick brought along is that of the balancer's channel: it may be that of
// another one, in whose attempt the call was made. The first pick of a channel binds its handle, with the Router that
// the handle kept if there is one.
func (b *lb) serves(h *call.Handle) bool {
	if own := b.owner.Load(); own != nil {
		return own == h
	}
	b.mu.Lock()
	if own := b.owner.Load(); own != nil || b.closed || !h.Owns(b.opts.ChannelzParent, b.target) {
		b.mu.Unlock()
		return own == h
	}
	b.configure(b.config, h, h.Take(b.config.key))
	b.publish() // for the picks that met the Router before
	b.mu.Unlock()
	b.announce(h)
	return true
}
