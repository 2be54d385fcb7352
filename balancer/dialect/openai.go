package dialect

import (
	"errors"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/balancer/routing"
)

// A body is an OpenAI request, cut into its members that matter. The last of a
// repeated member counts, null counts as absent.
type body struct {
	model, adapter, salt, extraKey     string
	id                                 string
	session, params, cacheKey, user    string
	maxCompletion, maxTokens           int
	messages, prompt, input, ids, tool []byte

	whole    bool // it is an object and did not end early
	oddModel bool // the model is something else than a string
}

// readBody reads the top level of an OpenAI request. Of a body that is cut off,
// scalars that are not whole are left out, and the prompt is what there is of it:
// a prefix of the whole one, but for tools that stand behind the cut.
func readBody(raw []byte) (b body) {
	w := walk(raw)
	for w.next() {
		if string(w.val) == "null" {
			continue
		}
		switch w.key {
		case "model":
			b.model, b.oddModel = w.scalar(), !w.cut && w.val[0] != '"'
		case "lora_path", "lora_name":
			b.adapter = w.scalar()
		case "cache_salt":
			b.salt = w.scalar()
		case "extra_key":
			b.extraKey = w.scalar()
		case "request_id", "rid":
			b.id = w.scalar()
		case "session_id":
			b.session = w.scalar()
		case "session_params":
			b.params = sessionOfParams(w.val)
		case "prompt_cache_key":
			b.cacheKey = w.scalar()
		case "user":
			b.user = w.scalar()
		case "max_completion_tokens":
			b.maxCompletion, _ = integerOf(w.val, w.cut)
		case "max_tokens":
			b.maxTokens, _ = integerOf(w.val, w.cut)
		case "messages":
			b.messages = w.val
		case "prompt":
			b.prompt = w.val
		case "input":
			b.input = w.val
		case "input_ids", "prompt_token_ids":
			b.ids = w.val
		case "tools":
			b.tool = w.val
		}
	}
	b.whole = w.end && !w.array
	return b
}

// sessionOfParams reads session_params: vLLM's session_id, SGLang's id.
func sessionOfParams(v []byte) string {
	var session, id string
	for w := walk(v); w.next(); {
		switch w.key {
		case "session_id":
			session = w.scalar()
		case "id":
			id = w.scalar()
		}
	}
	return first(session, id)
}

// scalar returns a copy of a string, or a number as written; "" for others.
func (w *walker) scalar() string {
	if w.cut || len(w.val) == 0 {
		return ""
	}
	if s, ok := unquote(w.val); ok {
		return strings.Clone(s)
	}
	if c := w.val[0]; c == '-' || c >= '0' && c <= '9' {
		return string(w.val)
	}
	return ""
}

// readJSON fills q from an OpenAI request. The session is, in this order,
// session_id, session_params.session_id (or .id), prompt_cache_key, user.
func (m *Method) readJSON(q *routing.Request, raw []byte, session, prompt bool) {
	b := readBody(raw)
	if m.dialect.SplitModel {
		if base, adapter, ok := strings.Cut(b.model, ":"); ok {
			b.model, b.adapter = base, adapter
		}
	}
	b.fill(q, session, prompt)
}

// ErrModel is the error of a body whose model is not a string.
var ErrModel = errors.New("model: it must be a string")

// ReadBody fills q from the body of an OpenAI request (chat, completion, embedding). What the host has set stays, so a
// session from a header comes before one in the body; a model "base:adapter" is left as it is. Of a body that ends early
// it takes what there is: the prompt is then a prefix of the whole one, and whole is false, as it is for what is no JSON
// object. The prompt aliases the body. The only error is [ErrModel]. Safe for concurrent use.
func ReadBody(q *routing.Request, raw []byte) (whole bool, err error) {
	b := readBody(raw)
	if b.oddModel {
		return b.whole, ErrModel
	}
	b.fill(q, true, true)
	return b.whole, nil
}

// fill sets what q does not have.
func (b *body) fill(q *routing.Request, session, prompt bool) {
	setIfEmpty(&q.ID, b.id)
	setIfEmpty(&q.Model, b.model)
	setIfEmpty(&q.Adapter, b.adapter)
	if b.salt != "" && b.extraKey != "" {
		b.salt += "\x00" + b.extraKey
	}
	setIfEmpty(&q.CacheSalt, first(b.salt, b.extraKey))
	if session {
		setIfEmpty(&q.Session, Session(first(b.session, b.params, b.cacheKey, b.user)))
	}
	if q.ExpectedOutput == 0 {
		if q.ExpectedOutput = b.maxCompletion; q.ExpectedOutput == 0 {
			q.ExpectedOutput = b.maxTokens
		}
	}
	if prompt && q.Prompt.Empty() {
		if p := b.text(); !p.Empty() {
			q.SetPrompt(p)
		}
	}
}

// text returns the prompt: ids, else the chat, else the completion prompt or the
// text to embed.
func (b *body) text() routing.Prompt {
	if p := completion(b.ids); len(p.Tokens) > 0 {
		return p
	}
	if b.messages != nil {
		if chat := renderChat(b.tool, b.messages); len(chat) > 0 {
			return routing.Prompt{Text: alias(chat)}
		}
	}
	if p := completion(b.prompt); !p.Empty() {
		return p
	}
	return completion(b.input)
}

// completion reads a prompt: a string, token ids, or a list of either.
func completion(v []byte) (p routing.Prompt) {
	if s, ok := unquote(v); ok {
		return routing.Prompt{Text: s}
	}
	var texts []string
	for w := walk(v); w.array && w.next(); {
		if s, ok := unquote(w.val); ok {
			texts = append(texts, s)
			continue
		}
		if w.val[0] != '[' {
			if n, err := strconv.ParseInt(alias(w.val), 10, 64); err == nil && !w.cut {
				p.Tokens = append(p.Tokens, uint32(n))
			}
			continue
		}
		if len(p.Tokens) > 0 {
			p.Tokens = append(p.Tokens, batchToken)
		}
		for x := walk(w.val); x.next(); {
			if n, err := strconv.ParseInt(alias(x.val), 10, 64); err == nil && !x.cut {
				p.Tokens = append(p.Tokens, uint32(n))
			}
		}
	}
	if len(texts) > 0 {
		p = routing.Prompt{Text: renderBatch(texts[0], texts[1:])}
	}
	return p
}

// readUsageJSON reads the usage of an OpenAI response or chunk.
func readUsageJSON(u *routing.Usage, raw []byte) (found bool) {
	for w := walk(dataLine(raw)); w.next(); {
		if w.key != "usage" {
			continue
		}
		for x := walk(w.val); x.next(); {
			n, ok := integerOf(x.val, x.cut)
			switch x.key {
			case "prompt_tokens", "input_tokens":
				found = raise(&u.PromptTokens, n, ok) || found
			case "completion_tokens", "output_tokens":
				found = raise(&u.OutputTokens, n, ok) || found
			case "prompt_tokens_details", "input_tokens_details":
				found = readCachedJSON(u, x.val) || found
			}
		}
	}
	return found
}

// readCachedJSON reads the details of a usage.
func readCachedJSON(u *routing.Usage, raw []byte) (found bool) {
	for w := walk(raw); w.next(); {
		if w.key == "cached_tokens" {
			n, ok := integerOf(w.val, w.cut)
			found = raise(&u.CachedTokens, n, ok) || found
		}
	}
	return found
}

// dataLine takes the "data:" of a server-sent event away.
func dataLine(raw []byte) []byte {
	if s, ok := strings.CutPrefix(alias(raw), "data:"); ok {
		return raw[len(raw)-len(s):]
	}
	return raw
}

func setIfEmpty(dst *string, s string) {
	if *dst == "" {
		*dst = s
	}
}
