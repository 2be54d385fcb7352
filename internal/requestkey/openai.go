package requestkey

import (
	"bytes"
	"cmp"
	"errors"
	"strconv"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Members of OpenAI's requests and responses.
var (
	bodyNames = []string{"model", "lora_path", "lora_name", "cache_salt", "extra_key", "request_id", "rid", "session_id",
		"session_params", "conversation", "prompt_cache_key", "user", "previous_response_id",
		"input_ids", "prompt_token_ids", "token_ids", "system", "tools", "documents", "messages", "prompt", "text",
		"instructions", "input"}
	parameterNames = []string{"lora_name"}        // of sampling parameters in a tensor
	sessionNames   = []string{"session_id", "id"} // vLLM's and SGLang's
	responseNames  = []string{"usage"}
	usageNames     = []string{"prompt_tokens", "input_tokens", "completion_tokens", "output_tokens",
		"prompt_tokens_details", "input_tokens_details"}
	detailNames = []string{"cached_tokens"}

	requestIDNames  = []string{"request_id", "previous_response_id", "input"}
	responseIDNames = []string{"id", "response"}
)

// ErrModel is the error of a body whose model is not a string.
var ErrModel = errors.New("model: it must be a string")

// ReadBody fills q from the body of an OpenAI request (chat, completion, response, embedding). What the host has set
// stays, so a session from a header comes before one in the body; a model "base:adapter" is left as it is. Of a body
// that ends early it takes what there is: the prompt is then a prefix of the whole one, but for tools that stand
// behind the end, and whole is false, as it is for what is no JSON object. The prompt aliases the body. The only
// error is [ErrModel]. Safe for concurrent use.
func ReadBody(q *policy.Request, raw []byte) (whole bool, err error) {
	b := objectOf(jsonValue{b: raw}, bodyNames)
	if v := b.val("model"); len(v.b) > 0 && !v.is('"') && !v.cut {
		return b.whole, ErrModel
	}
	b.fill(q, true, true)
	return b.whole, nil
}

// fill sets what is wanted of an OpenAI request and q does not have.
func (b *object) fill(q *policy.Request, session, prompt bool) {
	salt := b.copied("cache_salt", "extra_key")
	if extra := b.text("extra_key"); extra != "" && b.text("cache_salt") != "" {
		salt += "\x00" + extra
	}
	q.ID = cmp.Or(q.ID, b.copied("request_id", "rid"))
	q.Model = cmp.Or(q.Model, b.copied("model"))
	q.Adapter = cmp.Or(q.Adapter, b.copied("lora_path", "lora_name"))
	q.CacheSalt = cmp.Or(q.CacheSalt, salt)
	if session && q.Session == "" {
		p, c := objectOf(b.val("session_params"), sessionNames), objectOf(b.val("conversation"), sessionNames)
		q.Session = Session(cmp.Or(b.copied("session_id"), p.copied("session_id", "id"), b.copied("conversation"),
			c.copied("id"), b.copied("prompt_cache_key", "user", "previous_response_id")))
	}
	if prompt && q.Prompt.Empty() {
		if p := b.prompt(); !p.Empty() {
			q.SetPrompt(p)
		}
	}
}

// prompt returns ids, else the chat, else the completion prompt or the input.
func (b *object) prompt() policy.Prompt {
	for _, name := range []string{"input_ids", "prompt_token_ids", "token_ids"} {
		if p := completion(b.val(name)); len(p.Tokens) > 0 {
			return p
		}
	}
	if chat := b.chat(b.val("system"), b.val("messages")); len(chat) > 0 {
		return policy.Prompt{Text: alias(chat)}
	}
	for _, name := range []string{"prompt", "text"} { // text is SGLang's
		if p := completion(b.val(name)); !p.Empty() {
			return p
		}
	}
	return b.input()
}

// input returns the text to embed, or the input of OpenAI's responses API: a text or items, behind the instructions. If
// the request goes on with a response or a conversation that the engine has, the input does not begin the prompt.
func (b *object) input() policy.Prompt {
	if len(b.val("previous_response_id").b) > 0 || len(b.val("conversation").b) > 0 {
		return policy.Prompt{}
	}
	p, instructions := completion(b.val("input")), b.val("instructions")
	switch first, ok := instructions.text(); {
	case ok && p.Text != "":
		return policy.Prompt{Text: alias(appendTurn(appendTurn(nil, "system", first), "user", p.Text))}
	case !p.Empty():
		return p
	}
	return policy.Prompt{Text: alias(b.chat(instructions, b.val("input")))}
}

// chat renders turns behind the tools, the documents and the instructions.
func (b *object) chat(instructions, turns jsonValue) []byte {
	return renderChat(b.val("tools"), b.val("documents"), instructions, turns)
}

// completion reads a prompt: a string, token ids, or a list of either.
func completion(v jsonValue) (p policy.Prompt) {
	if s, ok := v.text(); ok {
		return policy.Prompt{Text: s}
	}
	var texts batch
	v.each("[]", func(_ string, v jsonValue) {
		s, ok := v.text()
		switch {
		case ok:
			texts.add(s)
		case !v.is('['):
			p.Tokens = v.appendID(p.Tokens)
		default:
			if len(p.Tokens) > 0 {
				p.Tokens = append(p.Tokens, batchToken)
			}
			v.each("[]", func(_ string, v jsonValue) { p.Tokens = v.appendID(p.Tokens) })
		}
	})
	if texts.n > 0 {
		return policy.Prompt{Text: texts.text}
	}
	return p
}

// appendID appends the value, if it is a whole number that ends before the input.
func (v jsonValue) appendID(ids []uint32) []uint32 {
	n, err := strconv.ParseInt(alias(v.b), 10, 64)
	if err != nil || v.cut {
		return ids
	}
	return append(ids, uint32(n))
}

// ReadUsage is [Method.Usage] for the body of an OpenAI response or chunk, which may be a server-sent event.
func ReadUsage(u *policy.Usage, raw []byte) (found bool) {
	response := objectOf(jsonValue{b: bytes.TrimPrefix(raw, []byte("data:"))}, responseNames)
	usage := objectOf(response.val("usage"), usageNames)
	cached := -1
	for _, name := range []string{"prompt_tokens_details", "input_tokens_details"} {
		details := objectOf(usage.val(name), detailNames)
		cached = max(cached, parseCount(details.text("cached_tokens")))
	}
	prompt := max(parseCount(usage.text("prompt_tokens")), parseCount(usage.text("input_tokens")))
	output := max(parseCount(usage.text("completion_tokens")), parseCount(usage.text("output_tokens")))
	return raise(u, prompt, output, cached)
}

// ResponseIDs returns the id that a request of OpenAI's Responses API gives its response, as vLLM takes it, and
// the id of the response that it goes on with; "" = none.
func ResponseIDs(raw []byte) (named, previous string) {
	follows := bytes.Contains(raw, []byte(`"previous_response_id"`))
	if !follows && !(bytes.Contains(raw, []byte(`"request_id"`)) && bytes.Contains(raw, []byte(`"input"`))) {
		return "", "" // as most bodies, which need not be read for it
	}
	b := objectOf(jsonValue{b: raw}, requestIDNames)
	if len(b.val("input").b) > 0 {
		named = b.text("request_id")
	}
	return named, b.text("previous_response_id")
}

// ResponseID returns the id of a response of OpenAI's Responses API from the beginning of its body, which is JSON or
// server-sent events; "" = it is not there.
func ResponseID(raw []byte) string {
	b := space(raw)
	if len(b) > 0 && b[0] != '{' {
		_, data, _ := bytes.Cut(b, []byte("data:"))
		b = space(data)
	}
	response := objectOf(jsonValue{b: b}, responseIDNames)
	inner := objectOf(response.val("response"), responseIDNames)
	return cmp.Or(inner.text("id"), response.text("id"))
}
