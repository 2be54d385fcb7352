package balancer

import (
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/router"
)

// server is the look-aside server's view of the replicas, passed to one Router. Used with lb.mu held.
type server struct {
	watch *lookaside.Watch // of the resolver; nil where there is no server

	// desk is how its servers are asked, in the way that was asked for; nil = they are not.
	desk     *call.Central
	deskOf   *lookaside.Watch
	deskWith policy.Central
	warned   bool

	attached *lookaside.Watch
	router   *router.Router
	detach   func()
}

// attach lets the Router, whose fleet is set, receive load and cache updates, and no other.
func (s *server) attach(r *router.Router) {
	if s.attached == s.watch && (s.router == r || s.watch == nil) {
		return
	}
	s.leave()
	if s.watch != nil {
		s.attached, s.router, s.detach = s.watch, r, s.watch.Attach(r)
	}
}

// leave ends it.
func (s *server) leave() {
	if s.detach != nil {
		s.detach()
		s.attached, s.router, s.detach = nil, nil, nil
	}
}

// central is how calls ask the server, nil where they do not.
func (s *server) central(a *policy.Adoption) *call.Central {
	if s.watch == nil || !a.Asks() {
		s.desk, s.deskOf = nil, nil
		return nil
	}
	if with := a.Central.WithDefaults(); s.desk == nil || s.deskOf != s.watch || s.deskWith != with {
		s.desk = &call.Central{Desk: s.watch.Desk(time.Duration(with.Deadline)), Closed: with.OnFailure == policy.FailClosed}
		s.deskOf, s.deskWith = s.watch, with
	}
	return s.desk
}

// warn logs once that there is no server to ask.
func (s *server) warn(a *policy.Adoption) {
	if a.Asks() && s.watch == nil && !s.warned {
		s.warned = true
		slog.Warn("warmpath: mode is central, and there is no look-aside server to ask: the local policy decides; " +
			"dial warmpath://server:port/deployment")
	}
}
