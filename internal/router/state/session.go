package state

import (
	"encoding/hex"

	"github.com/zeebo/xxh3"
)

// MaxSession is the longest session in bytes that a request carries as it is: as long as metadata can be as a rule.
const MaxSession = 8 << 10

// maxSessionKey is the longest session key in bytes that is the session itself.
const maxSessionKey = 256

// SessionKey returns what is hashed in the place of a session, except by Ray's ring, which hashes the session: the
// session itself, or for one longer than 256 bytes the 32 hexadecimal digits of its XXH3-128.
func SessionKey(session string) string {
	if len(session) <= maxSessionKey {
		return session
	}
	sum := xxh3.HashString128(session).Bytes()
	return hex.EncodeToString(sum[:])
}

// SessionHash returns the hash by which a session is named where its id is of no use.
func SessionHash(session string) uint64 { return xxh3.HashString(SessionKey(session)) }
