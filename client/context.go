package client

import (
	"context"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Session is a conversation with its own life: its calls share a prefix that grows, so they go where it is cached.
// Safe for many goroutines. It holds no goroutine and no channel, and the garbage collector frees it also without End.
type Session struct{ own *call.Session }

// NewSession returns the session with an id, as in the metadata session_id.
func NewSession(id string) *Session { return &Session{call.NewSession(id)} }

// Fork returns a child of the session: an agent that begins with what the session has, or with a part of it. If
// its prompts are seen, the longest cached prefix decides, as for any request. Otherwise it goes where its
// oldest ancestor goes, as far as the policy has room there.
func (s *Session) Fork(child string) *Session { return &Session{s.own.Fork(child)} }

// End frees what the channels of its calls keep of the session, and their look-aside servers. Its calls that are under
// way go on; a later call begins the session anew. Children are not ended.
func (s *Session) End() { s.own.End() }

// WithSession returns a context whose calls belong to a session, given as a [Session] or by its id.
// The session is not sent. It takes precedence over those in the metadata and in the message.
func WithSession[S string | *Session](ctx context.Context, session S) context.Context {
	return call.WithRoute(ctx, func(r *call.Route) {
		switch s := any(session).(type) {
		case string:
			r.SetSession(s)
		case *Session:
			r.SetSessionOf(s.own)
		}
	})
}

// WithPin returns a context whose calls go to the replica with the id and to no
// other. They wait while it is full. They fail with UNAVAILABLE where it is not in
// the fleet or its attributes say that it drains, and while it is not connected,
// unless the call has grpc.WaitForReady.
func WithPin(ctx context.Context, replica string) context.Context {
	return call.WithRoute(ctx, func(r *call.Route) { r.Pin = replica })
}

// WithExclude returns a context whose calls go to none of the replicas with the ids,
// besides those that the context excludes already. They fail with UNAVAILABLE where no
// other is left.
func WithExclude(ctx context.Context, replicas ...string) context.Context {
	return call.WithRoute(ctx, func(r *call.Route) { r.Exclude = append(slices.Clip(r.Exclude), replicas...) })
}

// A Decision is where a call went and why.
type Decision struct {
	Replica       string // id of the replica of the last attempt that was sent; "" when none was picked
	Address       string
	Prefill       string // id of the replica that prefilled the prompt for it; "" = it did itself
	Policy        string
	Reason        policy.Reason
	Rule          policy.Reason // the policy's own reason if Reason is another's: see [policy.Decision]
	MatchedTokens int           // prompt tokens predicted to be cached in the replica that prefills the prompt
	PromptTokens  int
	Place         int           // in the rendezvous order or on the ring; -1 = none
	Load          float64       // of the replica when it was picked, in tokens
	Queued        time.Duration // how long the attempt waited in the queue
	Attempts      int           // made, this one included
	Resumed       int           // of them, those that went on with a stream whose replica died
	Usage         policy.Usage  // as the replica reported it; of two legs CachedTokens is the prefill leg's, -1 = not reported
}

// WithDecision returns a context whose call fills d: where the last attempt went
// and why, and at the end the usage that the replica reported. Where no replica is
// picked, Replica is empty, Place and every field of Usage are -1. Read d after the
// call has ended, and use the context for one call.
func WithDecision(ctx context.Context, d *Decision) context.Context {
	*d = Decision(telemetry.NoReport)
	return call.WithRoute(ctx, func(r *call.Route) { r.Report = (*telemetry.Report)(d) })
}
