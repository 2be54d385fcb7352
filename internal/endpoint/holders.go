package endpoint

import (
	"cmp"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/warmpath/warmpath/internal/requestkey"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// maxHolders bounds each half of Holders.
const maxHolders = 1 << 15

// Holders knows which replica holds a response of OpenAI's Responses API: an engine keeps its responses in its own
// memory, and only there a request can go on from one. It has the latest 32,768 responses at least. Safe for use by many
// goroutines.
type Holders struct {
	seed maphash.Seed

	mu         sync.Mutex        // guards the fields below
	young, old map[uint64]string // by the hash of the response's id; the value is the id of the replica
}

// NewHolders returns Holders that know nothing.
func NewHolders() *Holders {
	return &Holders{seed: maphash.MakeSeed(), young: make(map[uint64]string)}
}

// Put notes the replica that holds a response.
func (h *Holders) Put(response, replica string) {
	if response == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.putLocked(maphash.String(h.seed, response), replica)
}

func (h *Holders) putLocked(hash uint64, replica string) {
	if len(h.young) == maxHolders {
		h.old, h.young = h.young, make(map[uint64]string)
	}
	h.young[hash] = replica
}

// of returns the replica that holds a response; "" = it is not known.
func (h *Holders) of(response string) string {
	hash := maphash.String(h.seed, response)
	h.mu.Lock()
	defer h.mu.Unlock()
	replica, found := h.young[hash]
	if !found {
		if replica, found = h.old[hash]; found {
			h.putLocked(hash, replica)
		}
	}
	return replica
}

// Choose has choose pick a replica for a call: the replica that holds the response that the call is about, if that is
// known and can be had, else any. A response that the caller has named is then held by the replica of the pick.
func (h *Holders) Choose(
	c *Call, q *warmpathv1.ChooseReplicaRequest, choose func() (*warmpathv1.ChooseReplicaResponse, error),
) (*warmpathv1.ChooseReplicaResponse, error) {
	named, previous := c.responses()
	if previous != "" && q.Pinned == "" {
		if q.Pinned = h.of(previous); q.Pinned != "" {
			if a, err := choose(); err == nil {
				h.Put(named, a.GetReplica().GetId())
				return a, nil
			}
			q.Pinned = ""
		}
	}
	a, err := choose()
	if err == nil {
		h.Put(named, a.GetReplica().GetId())
	}
	return a, err
}

// responses returns the id that a request of the Responses API gives its response, and the id of the response that the
// request is about.
func (c *Call) responses() (named, previous string) {
	if c.Method != nil {
		return "", ""
	}
	named, previous = requestkey.ResponseIDs(c.Body)
	return named, cmp.Or(previous, ResponseIn(c.path()))
}

func (c *Call) path() string {
	if paths := c.Headers(":path"); len(paths) > 0 {
		return paths[0]
	}
	return ""
}

// ResponseIn returns the id of the response that a path of the Responses API names, as in /v1/responses/ID/cancel.
func ResponseIn(path string) string {
	path, _, _ = strings.Cut(path, "?")
	_, id, _ := strings.Cut(path, "/responses/")
	id, _, _ = strings.Cut(id, "/")
	return id
}
