package requestkey

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

// SessionKeys finds the session in metadata: the first name that has a value wins, of those that are configured, and
// then of those that agents use. Names are compared without regard to case; what is configured may be written with - or
// with _ throughout. Immutable.
type SessionKeys struct {
	names []string // that are configured, in lower case, each in its spellings
}

// agentKeys are the names that an agent uses; "" = it sends no such thing.
type agentKeys struct {
	session string
	inner   string // an agent inside the session, which is a child of it
	parent  string // the session that this one is a child of
	final   string // "true" or "1": the session ends with the request
}

// agents are those of Claude Code, NVIDIA Dynamo and Codex.
var agents = []agentKeys{
	{session: "x-claude-code-session-id", inner: "x-claude-code-agent-id"},
	{session: "x-dynamo-session-id", parent: "x-dynamo-parent-session-id", final: "x-dynamo-session-final"},
	{session: "thread-id"},
}

// NewSessionKeys takes metadata names in order of preference; none means those of a config without session_keys. What a
// name may be is checked with the config.
func NewSessionKeys(names ...string) *SessionKeys {
	if len(names) == 0 {
		names = policy.Config{}.WithDefaults().SessionKeys
	}
	k := new(SessionKeys)
	for _, name := range names {
		name = strings.ToLower(name)
		for _, spelt := range []string{name, strings.ReplaceAll(name, "_", "-"), strings.ReplaceAll(name, "-", "_")} {
			if !slices.Contains(k.names, spelt) {
				k.names = append(k.names, spelt)
			}
		}
	}
	return k
}

// Outgoing returns the session in the outgoing metadata of a context under the configured names, "" if there is none.
// It does not copy the metadata.
func (k *SessionKeys) Outgoing(ctx context.Context) string {
	return Session(firstOutgoing(ctx, k.names))
}

// Agent fills the session of a request from the outgoing metadata of a context under the names of agents. It is for
// requests that have no other key: most have one, and need not pay for more names.
func (k *SessionKeys) Agent(ctx context.Context, q *policy.Request) {
	k.agent(func(name string) []string { return metadata.ValueFromOutgoingContext(ctx, name) }, q)
}

// In fills the session of a request from headers.
func (k *SessionKeys) In(headers func(name string) []string, q *policy.Request) {
	if q.Session = Session(firstOf(k.names, headers)); q.Session == "" {
		k.agent(headers, q)
	}
}

// agent fills the session from what an agent sends.
func (k *SessionKeys) agent(headers func(name string) []string, q *policy.Request) {
	get := func(name string) string { return cmp.Or(headers(name)...) }
	for _, a := range agents {
		id := get(a.session)
		if id == "" {
			continue
		}
		parent := get(a.parent)
		if inner := get(a.inner); inner != "" {
			id, parent = inner, id
		}
		q.Session = Session(id)
		q.SetParent(parent)
		part.OfRequest(q).Final = slices.Contains([]string{"true", "1"}, strings.ToLower(get(a.final)))
		return
	}
}
