package server

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router/part"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Bounds of one request.
const (
	maxExcluded   = 1000
	maxFallbacks  = 16
	maxCandidates = 256
	maxBlock      = 1 << 20 // bytes or tokens in a block
	maxLength     = 1 << 30 // of a prompt
)

// invalid is a request that is malformed.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// decodeKey fills the request from a message, which it aliases. Its errors are statuses that name the field.
func decodeKey(r *warmpathv1.ChooseReplicaRequest, q *policy.Request) error {
	k := r.GetKey()
	for _, f := range []struct {
		name, value string
		most        int
	}{
		{"deployment", r.GetDeployment(), maxName}, {"key.request_id", k.GetRequestId(), maxName},
		{"key.model", k.GetModel(), maxName}, {"key.adapter", k.GetAdapter(), maxName},
		{"key.cache_salt", k.GetCacheSalt(), maxName}, {"key.session", k.GetSession(), requestkey.MaxSession},
		{"key.parent_session", k.GetParentSession(), requestkey.MaxSession},
		{"pinned", r.GetPinned(), maxName}, {"prefilled_by", r.GetPrefilledBy(), maxName},
	} {
		if len(f.value) > f.most {
			return invalid("%s: longer than %d bytes", f.name, f.most)
		}
	}
	for name, ids := range map[string][]string{
		"excluded": r.GetExcluded(), "tried": r.GetTried(), "allowed": r.GetAllowed(),
	} {
		if len(ids) > maxExcluded {
			return invalid("%s: more than %d", name, maxExcluded)
		}
		for _, id := range ids {
			if len(id) > maxName {
				return invalid("%s: one is longer than %d bytes", name, maxName)
			}
		}
	}
	if r.GetMaxFallbacks() > maxFallbacks {
		return invalid("max_fallbacks: more than %d", maxFallbacks)
	}
	if n := r.GetMaxCandidates(); n > maxCandidates || n > 0 && r.GetMode() != warmpathv1.PickMode_PICK_MODE_QUERY {
		return invalid("max_candidates: more than %d, or mode is not PICK_MODE_QUERY", maxCandidates)
	}
	q.ID, q.Session = k.GetRequestId(), k.GetSession()
	q.SetParent(k.GetParentSession())
	part.OfRequest(q).Final = k.GetSessionFinal()
	q.Model, q.Adapter, q.CacheSalt = k.GetModel(), k.GetAdapter(), k.GetCacheSalt()
	q.Pin, q.Exclude, q.Allow = r.GetPinned(), r.GetExcluded(), r.GetAllowed()
	q.Priority = priorities[k.GetPriority()]
	prompt, err := decodePrompt(k)
	if err != nil {
		return err
	}
	q.SetPrompt(prompt)
	if n := k.GetPromptTokens(); n > 0 {
		q.PromptTokens = int(min(n, maxLength))
	}
	return nil
}

// priorities maps those of the protocol; an unknown one is normal.
var priorities = map[warmpathv1.Priority]int{
	warmpathv1.Priority_PRIORITY_LOW:  -1,
	warmpathv1.Priority_PRIORITY_HIGH: 1,
}

func decodePrompt(k *warmpathv1.RequestKey) (policy.Prompt, error) {
	switch p := k.GetPrompt().(type) {
	case *warmpathv1.RequestKey_Text:
		return policy.Prompt{Text: p.Text}, nil
	case *warmpathv1.RequestKey_TokenIds:
		return policy.Prompt{Tokens: p.TokenIds.GetIds()}, nil
	case *warmpathv1.RequestKey_BlockHashes:
		h, err := decodeHashes(p.BlockHashes)
		if err != nil {
			return policy.Prompt{}, invalid("key.block_hashes: %v", err)
		}
		return policy.Prompt{Hashed: h}, nil
	}
	return policy.Prompt{}, nil
}

// decodeHashes returns nil for a prompt without blocks.
func decodeHashes(b *warmpathv1.BlockHashes) (*policy.Hashed, error) {
	h := &policy.Hashed{Hashes: b.GetHashes()}
	switch size := b.GetBlock().(type) {
	case *warmpathv1.BlockHashes_BlockTokens:
		h.Size, h.Unit = int(min(size.BlockTokens, maxBlock+1)), 1
	case *warmpathv1.BlockHashes_BlockBytes:
		h.Size, h.Unit = int(min(size.BlockBytes, maxBlock+1)), policy.BytesPerToken
	}
	if h.Size < 1 || h.Size > maxBlock {
		return nil, fmt.Errorf("block_tokens or block_bytes must be between 1 and %d", maxBlock)
	}
	if h.Length = int(min(b.GetLength(), maxLength+1)); h.Length == 0 {
		h.Length = min(len(h.Hashes), maxLength) * h.Size
	}
	switch {
	case h.Length > maxLength:
		return nil, fmt.Errorf("length: more than %d", maxLength)
	case h.Length == 0 && len(h.Hashes) == 0:
		return nil, nil
	}
	return h, h.Check()
}
