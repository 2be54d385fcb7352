package requestkey

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// WantModel asks [Method.Request] for model and adapter also where that takes
// parsing a JSON body or tensors. Hosts set it for fleets whose replicas declare
// models or adapters; policies have no use for it.
const WantModel policy.Uses = 1 << 7

// ErrContent is the error of a request with chat turns whose content cannot be read. It has no prompt then: what the
// turns have in common is not what they are.
var ErrContent = errors.New("the content of a chat turn cannot be read: messages.content leads to no text, " +
	"list of parts or google.protobuf.Value")

// JoinsModel reports whether the model of a request may be "base:adapter", as in an OpenAI body. It is left whole: only
// the fleet tells whether a colon is part of a model's name.
func (m *Method) JoinsModel() bool { return len(m.body.alts) > 0 && !m.body.alts[0].tensor() }

// Request fills q from the first message of a call. What the host has set stays,
// so a session from metadata comes before one in the message. With a policy that
// uses neither prompt nor session only cheap scalars are read: of an encoded
// message that comes in several buffers, those in the first. The only error is
// [ErrContent]; all else that cannot be read is absent.
func (m *Method) Request(q *policy.Request, uses policy.Uses, msg any) error {
	defer harmless()
	return m.readRequest(q, uses, msg)
}

func (m *Method) readRequest(q *policy.Request, uses policy.Uses, msg any) error {
	prompt := uses&policy.UsesPrompt != 0 && q.Prompt.Empty()
	session := uses&policy.UsesSession != 0 && q.Session == ""
	cheap := !prompt && !session && uses&WantModel == 0
	if cheap && !m.scalars {
		return nil
	}
	s := open(msg, m.named, cheap)
	var body value
	if !cheap {
		body = m.body.first(&s)
	}
	parameters := body.text != "" && m.body.alts[0].tensor()
	if parameters { // which come before tensors of their own, and are no OpenAI request
		o := objectOf(jsonValue{b: bytesOf(body.text)}, parameterNames)
		q.Adapter = cmp.Or(q.Adapter, o.copied("lora_name"))
	}
	m.id.fill(&q.ID, &s)
	m.model.fill(&q.Model, &s)
	m.adapter.fill(&q.Adapter, &s)
	m.salt.fill(&q.CacheSalt, &s)
	if session {
		m.session.fill(&q.Session, &s)
		q.Session = Session(q.Session)
	}
	unread := prompt && m.readPrompt(q, &s)
	if body.text != "" && !parameters {
		o := objectOf(jsonValue{b: bytesOf(body.text)}, bodyNames)
		o.fill(q, session, prompt)
	}
	if unread && q.Prompt.Empty() {
		return ErrContent
	}
	return nil
}

// batchToken stands between the prompts of a batch of token ids.
const batchToken = 1<<32 - 1

// readPrompt fills the prompt of a request: token ids, which are not copied where the message has them as one slice,
// else text, else chat turns. It reports whether there are turns whose contents cannot be read.
func (m *Method) readPrompt(q *policy.Request, s *source) (unread bool) {
	var p policy.Prompt
	batched := false // the next id belongs to another prompt
	m.tokens.each(s, func(v value) {
		if v.kind == kindEnd {
			batched = len(p.Tokens) > 0
			return
		}
		if batched {
			p.Tokens, batched = append(p.Tokens, batchToken), false
		}
		p.Tokens = v.appendIDs(p.Tokens)
	})
	if p.Empty() {
		var texts batch
		m.prompt.each(s, func(v value) { texts.add(v.string()) })
		p.Text = texts.text
	}
	if p.Empty() {
		p.Text, unread = m.chat(s)
	}
	if !p.Empty() {
		q.SetPrompt(p)
		if len(m.media.alts) > 0 {
			m.mixMedia(q, s)
		}
	}
	return unread
}

// Abort returns the method that ends the request which has the id, "" where there is none. Its
// request is a message whose field 1 is the id.
func (m *Method) Abort() string { return m.dialect.Abort }

// RequestID reads the request id out of a request message, "" where it has none.
func (m *Method) RequestID(msg any) (id string) {
	defer harmless()
	s := open(msg, m.named, true)
	m.id.fill(&id, &s)
	return id
}

// TakesRank reports whether requests of the method have a field for the data-parallel rank.
func (m *Method) TakesRank() bool { return len(m.rank.alts) > 0 }

// HasRank reports whether the application has set the rank in a request message.
func (m *Method) HasRank(msg any) bool { return m.TakesRank() && m.has(&m.rank, msg) }

// PatchRank appends the rank to a patch of a request that has a field for it.
func (m *Method) PatchRank(patch []byte, rank int) []byte { return m.rank.number(patch, int64(rank)) }

// PatchPriority appends the engine's priority of a level to a patch: nothing if the level is normal, if the engine has
// no number for the level, if requests have no field for it, or if the application has set it in the message.
func (m *Method) PatchPriority(patch []byte, level int, msg any) []byte {
	value := -level
	if m.dialect.LargestFirst {
		value = max(level, 0) // an engine may serve a request without priority last
	}
	if value == 0 || len(m.priority.alts) == 0 || m.has(&m.priority, msg) {
		return patch
	}
	return m.priority.number(patch, int64(value))
}

// has reports whether a request message has something at a place.
func (m *Method) has(p *place, msg any) (set bool) {
	defer harmless()
	s := open(msg, m.named, false)
	p.each(&s, func(value) { set = true })
	return set
}

// MaxSession is the longest session in bytes that a request carries as it is.
const MaxSession = state.MaxSession

// Session returns the session of a request for an id: the id, or for one that is longer than state.MaxSession its key.
func Session(id string) string {
	if len(id) <= MaxSession {
		return id
	}
	return state.SessionKey(id)
}

// requestIDKeys are the metadata names of a request id, best first. The last is
// what vllm-tgis-adapter reads.
var requestIDKeys = []string{"x-request-id", "request-id", "x-correlation-id"}

// RequestID returns the request id in the outgoing metadata of a context, "" if
// there is none. It serves as Request.ID only, never as a session.
func RequestID(ctx context.Context) string { return firstOutgoing(ctx, requestIDKeys) }

// firstOutgoing returns the first value that is not empty, of the first name that has one.
func firstOutgoing(ctx context.Context, names []string) string {
	return firstOf(names, func(name string) []string { return metadata.ValueFromOutgoingContext(ctx, name) })
}

func firstOf(names []string, values func(name string) []string) (first string) {
	for i := 0; first == "" && i < len(names); i++ {
		first = cmp.Or(values(names[i])...)
	}
	return first
}

// mixMedia makes the prompt of a request that of its media: the id of each is mixed into the token at its first
// placeholder, and so into the block of that token and those that follow. Media whose place is not known go into the
// cache salt, and so into every block.
func (m *Method) mixMedia(q *policy.Request, s *source) {
	copied := false
	for _, alt := range m.media.alts {
		m.media.alternative(s, alt, func(v value) {
			m.mediaIn(&source{message: v.message()}, func(hash uint64, at int64) {
				if at < 0 || at >= int64(len(q.Prompt.Tokens)) {
					q.CacheSalt += "\x00" + strconv.FormatUint(hash, 16)
					return
				}
				if !copied {
					q.Prompt.Tokens, copied = slices.Clone(q.Prompt.Tokens), true
				}
				q.Prompt.Tokens[at] ^= uint32(hash ^ hash>>32)
			})
		})
	}
}

// mediaIn calls mix for the media of a message that holds some, with the places of their first placeholders; -1 is not
// known. Several pair with their places one by one. One begins at its first place. If the two do not fit, all are one.
func (m *Method) mediaIn(s *source, mix func(hash uint64, at int64)) {
	var ids []string
	m.mediaID.each(s, func(v value) {
		if id := v.string(); id != "" {
			ids = append(ids, id)
		}
	})
	var places []int64
	m.mediaOffset.each(s, func(v value) {
		if v.kind == kindNumber || v.num == 0 { // an offset of 0 is not encoded
			places = append(places, v.num)
		}
	})
	switch {
	case len(ids) > 0 && len(ids) == len(places):
		for i, id := range ids {
			mix(xxh3.HashString(id), places[i])
		}
	case len(ids) == 1:
		mix(xxh3.HashString(ids[0]), first(places))
	case s.populated() > 0:
		mix(xxh3.Hash(s.encoded()), first(places))
	}
}

// first returns the lowest of some places, -1 of none.
func first(places []int64) int64 {
	if len(places) == 0 {
		return -1
	}
	return slices.Min(places)
}
