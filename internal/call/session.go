package call

import (
	"cmp"
	"slices"
	"sync"
	"weak"

	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Session is what client.Session wraps.
type Session struct {
	id, parent string

	mu   sync.Mutex             // guards the field below; nothing is called under it
	used []weak.Pointer[Handle] // the channels of its calls
}

// NewSession returns the session with an id.
func NewSession(id string) *Session { return &Session{id: id} }

// Fork returns a child of the session.
func (s *Session) Fork(child string) *Session {
	return &Session{id: child, parent: cmp.Or(s.parent, s.id)}
}

// End frees what the channels of its calls keep of the session, and their look-aside servers.
func (s *Session) End() {
	s.mu.Lock()
	used := s.used
	s.used = nil
	s.mu.Unlock()
	for _, w := range used {
		if h := w.Value(); h != nil {
			h.forget(requestkey.Session(s.id))
		}
	}
}

// SetSession makes the calls of a route those of a session that has this id and no life of its own.
func (r *Route) SetSession(id string) { r.Session, r.parent, r.of = id, "", nil }

// SetSessionOf makes the calls of a route those of a session.
func (r *Route) SetSessionOf(s *Session) { r.Session, r.parent, r.of = s.id, s.parent, s }

// uses notes a channel of its calls.
func (s *Session) uses(h *Handle) {
	w := weak.Make(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.used, w) {
		s.used = slices.DeleteFunc(s.used, func(w weak.Pointer[Handle]) bool { return w.Value() == nil })
		s.used = append(s.used, w)
	}
}

// forget frees what the channel keeps of a session, and in mode central its server.
func (h *Handle) forget(session string) {
	h.mu.Lock()
	all := slices.Clone(h.live)
	if h.kept != nil {
		all = append(all, h.kept)
	}
	h.mu.Unlock()
	hash := state.SessionHash(session)
	for _, b := range all {
		b.Router.Fleet.Forget(hash)
		if s := b.Central.Server; s != nil {
			s.Forget(hash)
		}
	}
}
