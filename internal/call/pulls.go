package call

import (
	"container/list"
	"sync"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// pulls are what decode replicas hold of the last turns of sessions: the prefill leg of a session's next turn pulls its
// KV cache from there, so that the output of the last turn is not computed again. The zero value is ready for use. Safe
// for concurrent use.
type pulls struct {
	mu   sync.Mutex // guards the fields below
	of   map[string]*list.Element
	all  list.List // of pull, the oldest first
	size int       // of all, in bytes
}

// A pull is one of them.
type pull struct {
	session string
	from    link
	held    requestkey.Held
	until   time.Time
}

const (
	// turnLease is for how long a decode replica holds a turn: a little less than vLLM's 480 s.
	turnLease = 450 * time.Second
	// maxPulls bounds what a channel keeps, in bytes. A turn of 32,000 tokens takes 30 KB.
	maxPulls = 64 << 20
)

func (p *pull) bytes() int { return len(p.session) + len(p.held.Params) + 200 }

// keep keeps what a replica holds of a session's turn, in the place of the turn before.
func (p *pulls) keep(session string, from *policy.Replica, held requestkey.Held, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = make(map[string]*list.Element)
	}
	p.drop(p.of[session])
	kept := pull{session, linkTo(from), held, now.Add(turnLease)}
	p.size += kept.bytes()
	p.of[session] = p.all.PushBack(kept)
	for e := p.all.Front(); e != nil && (p.size > maxPulls || now.After(e.Value.(pull).until)); e = p.all.Front() {
		p.drop(e)
	}
}

// take gives out the transfer parameters for a prefill leg at a replica, once; nil where nothing is held that fits:
// begins reports whether the prompt begins with it.
func (p *pulls) take(
	session string, to *policy.Replica, v policy.View, begins func(*requestkey.Held) bool, now time.Time,
) []byte {
	p.mu.Lock()
	e := p.of[session]
	p.mu.Unlock()
	if e == nil {
		return nil
	}
	kept := e.Value.(pull) // it does not change
	from := v.ByID(kept.from.ID)
	gone := now.After(kept.until) || from == nil || kept.from.lost() ||
		from.Address != kept.from.Address || from.Instance != kept.from.Instance
	if !gone && (from.Pair != to.Pair || from.ID == to.ID || from.Drains() || !begins(&kept.held)) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[session] != e { // another call was faster
		return nil
	}
	if p.drop(e); gone {
		return nil
	}
	return kept.held.Params
}

// forget drops what is kept of a session.
func (p *pulls) forget(session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(p.of[session])
}

// drop drops one; nil is none. Called with mu held.
func (p *pulls) drop(e *list.Element) {
	if e != nil {
		kept := p.all.Remove(e).(pull)
		p.size -= kept.bytes()
		delete(p.of, kept.session)
	}
}

// session returns the session of a call, and whether it ends with the call.
func (c *Call) session(b *Binding) (id string, final bool) {
	q := &c.key.request
	if q.Session == "" && b.SessionKeys != nil {
		q = new(policy.Request)
		b.SessionKeys.In(c.Header, q)
	}
	return q.Session, q.State().Final
}

// begins begins a turn of the call's session. The prefill leg pulls what the last turn has left.
func (l *legs) begins(c *Call) {
	b, kept := c.reserved.binding, &c.handle.pulls
	session, final := c.session(b)
	if session == "" || !l.kv.Sequential() {
		return
	}
	m := b.dialect(&c.key.request)
	fits := func(h *requestkey.Held) bool { return h.Begins(m, c.key.msg) }
	l.transfer.Pull = kept.take(session, l.prefills.Replica, b.Router.View(), fits, time.Now())
	if final {
		kept.forget(session)
		return
	}
	l.session, l.turn = session, m.Turn(c.key.msg)
}

// keeps takes in a response message of the decode leg, and keeps what the replica holds of the turn.
func (l *legs) keeps(c *Call, msg any) {
	if l.turn == nil {
		return
	}
	held, ok := l.turn.Read(msg)
	if r := c.route; ok && (r == nil || r.of == nil || r.of.has(c.handle)) { // the session has not ended meanwhile
		c.handle.pulls.keep(l.session, c.Decision().Replica, held, time.Now())
	}
}
