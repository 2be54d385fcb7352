package requestkey

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/internal/router/state"
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
	return state.SessionKey(id)
}

// SessionKeys finds the session in metadata. Names are compared without regard
// to case, and may be written with - or with _ throughout; the first configured name that has a value
// wins. Immutable.
type SessionKeys struct{ names []string } // in lower case, each in its spellings

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
		name = strings.ToLower(name)
		for _, spelt := range []string{name, strings.ReplaceAll(name, "_", "-"), strings.ReplaceAll(name, "-", "_")} {
			if !slices.Contains(k.names, spelt) {
				k.names = append(k.names, spelt)
			}
		}
	}
	return k, nil
}

// metadataName is a name of metadata, in lower case.
var metadataName = regexp.MustCompile(`^[0-9a-z_.-]+$`)

func checkKey(name string) error {
	switch name = strings.ToLower(name); {
	case strings.HasSuffix(name, "-bin"):
		return fmt.Errorf("%q: binary metadata cannot be a session", name)
	case !metadataName.MatchString(name):
		return fmt.Errorf("%q: a metadata name has letters, digits, -, _ and . only", name)
	}
	return nil
}

// Outgoing returns the session in the outgoing metadata of a context, "" if
// there is none. It does not copy the metadata.
func (k *SessionKeys) Outgoing(ctx context.Context) string {
	return Session(firstOutgoing(ctx, k.names))
}

// In returns the session in metadata, or in the headers of an HTTP request, "" if there is none.
func (k *SessionKeys) In(md metadata.MD) string {
	return k.Outgoing(metadata.NewOutgoingContext(context.Background(), md))
}

// requestIDKeys are the metadata names of a request id, best first. The last is
// what vllm-tgis-adapter reads.
var requestIDKeys = []string{"x-request-id", "request-id", "x-correlation-id"}

// RequestID returns the request id in the outgoing metadata of a context, "" if
// there is none. It serves as Request.ID only, never as a session.
func RequestID(ctx context.Context) string { return firstOutgoing(ctx, requestIDKeys) }

// firstOutgoing returns the first value that is not empty, of the first name that has one.
func firstOutgoing(ctx context.Context, names []string) (first string) {
	for i := 0; first == "" && i < len(names); i++ {
		first = cmp.Or(metadata.ValueFromOutgoingContext(ctx, names[i])...)
	}
	return first
}
