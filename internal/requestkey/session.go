package requestkey

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// MaxSession is the longest session in bytes that a request carries as it is: as long as metadata can be as a rule.
const MaxSession = 8 << 10

// DefaultSessionKeys are the metadata names looked at when none are configured.
var DefaultSessionKeys = []string{warmpathv1.MetadataSessionID, warmpathv1.MetadataXSessionID}

// Session returns the session of a request for an id: the id, or for one that is longer than MaxSession its key.
func Session(id string) string {
	if len(id) <= MaxSession {
		return id
	}
	return SessionKey(id)
}

// SessionKey is [policy.SessionKey].
func SessionKey(id string) string { return policy.SessionKey(id) }

// SessionKeys finds the session in metadata. Names are compared without regard
// to case and with - and _ as equals; the first configured name that has a value
// wins. Immutable.
type SessionKeys struct{ names []sessionKey }

type sessionKey struct {
	normal    string
	spellings []string // with - and _
}

// NewSessionKeys takes metadata names in order of preference; none means
// DefaultSessionKeys.
func NewSessionKeys(names ...string) (*SessionKeys, error) {
	if len(names) == 0 {
		names = DefaultSessionKeys
	}
	k := &SessionKeys{}
	for i, name := range names {
		if err := checkKey(name); err != nil {
			return nil, fmt.Errorf("session_keys[%d]: %w", i, err)
		}
		k.names = append(k.names, sessionKey{normal(name), spellings(strings.ToLower(name))})
	}
	return k, nil
}

func checkKey(name string) error {
	if name == "" {
		return fmt.Errorf("empty name")
	}
	for _, c := range []byte(strings.ToLower(name)) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return fmt.Errorf("%q: %q cannot stand in a metadata name", name, c)
		}
	}
	if strings.HasSuffix(strings.ToLower(name), "-bin") {
		return fmt.Errorf("%q: binary metadata cannot be a session", name)
	}
	return nil
}

// normal returns a name in lower case with - for _.
func normal(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// spellings returns the ways to write a name with - and _, as given first; of a name with many separators those with
// one kind of them.
func spellings(name string) []string {
	if strings.Count(normal(name), "-") > 3 {
		return []string{name, normal(name), strings.ReplaceAll(name, "-", "_")}
	}
	out := []string{name}
	for i := range len(name) {
		if name[i] != '-' && name[i] != '_' {
			continue
		}
		for _, s := range out[:len(out):len(out)] {
			b := []byte(s)
			b[i] ^= '-' ^ '_'
			out = append(out, string(b))
		}
	}
	return out
}

// Outgoing returns the session in the outgoing metadata of a context, "" if
// there is none. It does not copy the metadata.
func (k *SessionKeys) Outgoing(ctx context.Context) string {
	for _, key := range k.names {
		for _, name := range key.spellings {
			if s := firstOutgoing(ctx, name); s != "" {
				return Session(s)
			}
		}
	}
	return ""
}

// In returns the session in metadata, "" if there is none.
func (k *SessionKeys) In(md metadata.MD) string {
	for _, key := range k.names {
		if s := lookup(md, key.normal); s != "" {
			return Session(s)
		}
	}
	return ""
}

// lookup returns the first value under a normalized name. Of several spellings
// of one name in the same metadata the first in byte order counts.
func lookup(md metadata.MD, name string) string {
	var key, value string
	for k, vals := range md {
		if len(k) == len(name) && normal(k) == name && (value == "" || k < key) {
			if s := first(vals...); s != "" {
				key, value = k, s
			}
		}
	}
	return value
}

// requestIDKeys are the metadata names of a request id, best first. The last is
// what vllm-tgis-adapter reads.
var requestIDKeys = []string{"x-request-id", "request-id", "x-correlation-id"}

// RequestID returns the request id in the outgoing metadata of a context, "" if
// there is none. It serves as Request.ID only, never as a session.
func RequestID(ctx context.Context) string {
	for _, name := range requestIDKeys {
		if s := firstOutgoing(ctx, name); s != "" {
			return s
		}
	}
	return ""
}

func firstOutgoing(ctx context.Context, name string) string {
	return first(metadata.ValueFromOutgoingContext(ctx, name)...)
}

// first returns the first that is not empty.
func first(s ...string) string {
	for _, s := range s {
		if s != "" {
			return s
		}
	}
	return ""
}
