package requestkey

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// A Turn follows the tokens of one request, of its prompt and of its output so far, so that a prefill leg of the next
// turn may take over their KV cache. It is not safe for concurrent use.
type Turn struct {
	method *Method
	held   Held   // of all tokens so far
	before uint64 // the hash of all but the last
}

// Held is the KV cache that a decode replica holds of a turn. Only a prompt that begins with its very tokens may use
// it: the engine does not compare them.
type Held struct {
	// Params are the transfer parameters, as they came.
	Params []byte
	prompt int    // tokens of the prompt
	tokens int    // of prompt and output
	hash   uint64 // of the tokens, and of what else their KV cache depends on
}

// Turn begins the turn of a request. It is nil where the prompt or the output is not known as token ids, or where
// something in the request may keep its KV cache from being that of a longer prompt.
func (m *Method) Turn(request any) *Turn {
	prompt, seed := m.ids(request)
	if len(prompt) == 0 {
		return nil
	}
	hash := hashOf(prompt, len(prompt), seed)
	return &Turn{method: m, before: hash, held: Held{prompt: len(prompt), tokens: len(prompt), hash: hash}}
}

// ids returns the prompt of a request as token ids, with the seed of their hash; none where it is not to be used.
func (m *Method) ids(request any) (prompt []uint32, seed kvindex.Seed) {
	defer harmless()
	msg, typed := request.(proto.Message)
	if m.output == nil || m.legs == nil || !typed {
		return nil, 0
	}
	r := msg.ProtoReflect()
	if in, _ := m.output.anew.find(r); in != nil || !m.output.turn.allows(r, "") {
		return nil, 0
	}
	var q policy.Request
	if m.readRequest(&q, policy.UsesPrompt|WantModel, request) != nil {
		return nil, 0
	}
	return q.Prompt.Tokens, kvindex.SeedFor(q.Model, q.Adapter, q.CacheSalt)
}

// hashOf is the hash of tokens that begin with a prompt: the prompt's, to which each token behind it is chained.
func hashOf(tokens []uint32, prompt int, seed kvindex.Seed) uint64 {
	var whole [1]uint64
	hash := kvindex.AppendTokens(whole[:0], tokens[:prompt], prompt, seed)[0]
	for _, id := range tokens[prompt:] {
		hash = kvindex.Chain(hash, uint64(id))
	}
	return hash
}

// Read takes in a response message. It returns what the replica holds, with the last message of an engine that keeps
// it.
func (t *Turn) Read(response any) (held Held, ok bool) {
	defer harmless()
	msg, typed := response.(proto.Message)
	if !typed {
		return held, false
	}
	m := msg.ProtoReflect()
	ids := t.method.output.tokens.ids(m)
	if len(ids) == 0 && t.held.tokens == t.held.prompt { // the whole output may come at once
		ids = t.method.output.all.ids(m)
	}
	for _, id := range ids {
		t.before, t.held.hash = t.held.hash, kvindex.Chain(t.held.hash, uint64(id))
		t.held.tokens++
	}
	held = t.held
	if held.Params = t.method.legs.Answer(response); held.Params == nil {
		return held, false
	}
	held.Params = slices.Clone(held.Params)
	switch heldTokens(held.Params) {
	case held.tokens: // the engine has begun another step
	case held.tokens - 1: // as a rule: the KV of the last token is not computed
		held.tokens, held.hash = held.tokens-1, t.before
	default:
		return held, false
	}
	return held, held.tokens >= held.prompt
}

// heldTokens is how many tokens transfer parameters, a Struct or JSON, offer to a prefill leg; 0 = none. Parameters
// without an expiry count as none: the engine would not notice that the blocks hold something else by then.
func heldTokens(params []byte) int {
	var p structpb.Struct
	if p.UnmarshalJSON(params) != nil && proto.Unmarshal(params, &p) != nil {
		return 0
	}
	tokens := p.GetFields()["remote_num_tokens"].GetNumberValue()
	expires := p.GetFields()["remote_blocks_expiry_time"].GetNumberValue()
	if n := int(tokens); p.GetFields()["do_remote_decode"].GetBoolValue() && expires > 0 && float64(n) == tokens {
		return n
	}
	return 0
}

// Begins reports whether the prompt of a request begins with what is held, and goes on.
func (h *Held) Begins(m *Method, request any) bool {
	prompt, seed := m.ids(request)
	return len(prompt) > h.tokens && hashOf(prompt[:h.tokens], h.prompt, seed) == h.hash
}
