// Package dialect describes gRPC services: in which fields of a method's messages the
// prompt, the session, the model and the usage stand. A [Dialect] is data: paths of field
// numbers ("4.1"), and of field names where messages are typed ("token_ids.ids").
// client.WithDialects and the config field dialects take it. Published engines are built
// in; of other methods the fields called prompt, messages, prompt_token_ids, input_ids,
// session_id and the like are read.
//
// A [Tokenizer] makes token ids of a prompt that is text. The one of a channel is named by
// the config field tokenizer; package tokenizers registers those for files, and a program
// registers its own by [RegisterTokenizer].
package dialect

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// A Dialect describes where the messages of some methods have the request key and the usage. The
// zero value of a field means that the messages carry no such thing.
//
//	dialect.Dialect{
//		Methods: []string{"/my.Service/Generate"},
//		Tokens:  "4.1",
//		Session: "13",
//		Model:   "2",
//	}
type Dialect struct {
	// Like is a built-in method whose dialect this one starts from: fields that
	// are set here replace the ones there. Methods defaults to that method.
	Like string `json:"like,omitempty"`
	// Methods are full gRPC method names, "/package.Service/Method".
	Methods []string `json:"methods,omitempty"`

	RequestID Path `json:"request_id,omitempty"`
	Session   Path `json:"session,omitempty"`
	Model     Path `json:"model,omitempty"`
	Adapter   Path `json:"adapter,omitempty"`
	CacheSalt Path `json:"cache_salt,omitempty"`

	// Rank is where the engine reads the data-parallel rank: the number of an integer of the
	// request. The chosen rank is written there, unless the application set one.
	Rank Path `json:"rank,omitempty"`
	// Priority is where the engine reads the priority: an integer of the request. A call of high priority gets -1 there
	// and one of low priority 1, unless the application set one.
	Priority Path `json:"priority,omitempty"`
	// LargestFirst says that the engine serves the largest Priority first, as SGLang does. Then a call of high priority
	// gets 1 and every other call nothing: SGLang may serve a request without a priority last.
	LargestFirst bool `json:"largest_first,omitempty"`
	// MaxTokens is the bound of output tokens: an integer of the request. A stream that goes on at another replica has it lowered by the tokens that have come.
	MaxTokens Path `json:"max_tokens,omitempty"`

	// Prompt is text: a string or bytes, or a list of them ("3[].2"), which is a
	// batch.
	Prompt Path `json:"prompt,omitempty"`
	// Tokens are token ids: repeated integers. They come before Prompt.
	Tokens Path `json:"tokens,omitempty"`
	// Messages are chat turns, used where there is neither Prompt nor Tokens.
	Messages *Messages `json:"messages,omitempty"`
	// Media stand beside Prompt, Tokens or Messages.
	Media *Media `json:"media,omitempty"`
	// JSONBody is a string or bytes that hold an OpenAI request, as SGLang's do: its model "base:adapter" is a model and
	// an adapter, unless a replica declares the whole as its model. A tensor holds sampling parameters instead: of them lora_name, before Adapter.
	JSONBody Path `json:"json_body,omitempty"`

	// Usage is where responses say what the call cost.
	Usage Usage `json:"usage,omitzero"`

	// Abort is the method that ends a request: its field 1 is the request id. It is called
	// after a cancel, a deadline or a dropped stream, if RequestID was set in the message: some
	// engines do not notice the end of a call, or notice it late.
	Abort string `json:"abort,omitempty"`

	// KV is how the KV cache of a prompt goes from a replica that prefills to one that decodes; nil = requests of the
	// methods are served whole.
	KV *KV `json:"kv,omitempty"`

	// DeferStream asks for the opening of client and bidirectional streams to
	// wait for the first message, so that they are routed by it. Such a stream
	// is routed once: clients that put many conversations on one should not set it.
	DeferStream bool `json:"defer_stream,omitempty"`
}

// Messages are chat turns as a repeated message. Role and Content start there.
type Messages struct {
	Path    Path `json:"path"`
	Role    Path `json:"role"`
	Content Path `json:"content"`
}

// Media are images, sounds and the like beside a prompt, in which only placeholders stand for them: two images have the
// same placeholders. ID and Offset start at Path.
type Media struct {
	// Path leads to a message, or a list of them, that holds media; all its alternatives count.
	Path Path `json:"path"`
	// ID is the engine's name of a medium: a hash or a uuid. Without one the message is hashed.
	ID Path `json:"id,omitempty"`
	// Offset is the place of the medium's first placeholder in the token ids. Where it is not known, no block of the
	// prompt is that of another medium.
	Offset Path `json:"offset,omitempty"`
}

// KV describes a request in two legs: the same request at a replica that computes the KV cache of its prompt, and at
// one that takes over the cache and generates the output. Each leg's request gets fields of its own.
//
// Prefill and Decode have these fields by their paths, in field numbers. A value is an integer if it is of digits or
// true. Others are text, in which these are replaced:
//
//	$answer   what Answer leads to in a response of the prefill leg, byte for byte; it stands alone
//	$room     a random number of 63 bits, the same in both legs; an integer where it stands alone
//	$room32   the same in 31 bits
//	$host     host of the prefill replica's bootstrap server
//	$port     its port; an integer where it stands alone
//	$address  both
//	$engine   engine id of the prefill replica, with the suffix _dp and the data-parallel rank where it has several
type KV struct {
	// Params leads to the transfer parameters of a request. A request that has them already is not split.
	Params Path `json:"params"`
	// Sequences leads to the number of outputs that a request asks for. One that asks for several is not split.
	Sequences Path `json:"sequences,omitempty"`
	// Answer leads to what the prefill leg hands over. Without it the legs are sent at the same time, and meet by $room:
	// then replicas of a role are given no request that is not split.
	// What vLLM's decode leg answers there goes to the prefill leg of the session's next turn, in the place of $answer.
	Answer  Path            `json:"answer,omitempty"`
	Prefill map[Path]string `json:"prefill"`
	Decode  map[Path]string `json:"decode"`
}

// Usage describes where a response carries token counts. Servers differ in what they
// fill and when: of totals the largest counts, over all messages of the call.
type Usage struct {
	Prompt Path `json:"prompt,omitempty"`
	Output Path `json:"output,omitempty"`
	Cached Path `json:"cached,omitempty"`
	// OutputDelta is the number of output tokens of one message; they are added up.
	OutputDelta Path `json:"output_delta,omitempty"`
	// JSON is a string or bytes that hold an OpenAI response or chunk.
	JSON Path `json:"json,omitempty"`
}

// A Path leads to a field of a message: steps separated by dots, each a field
// number or a field name. Names work on typed messages only.
//
//	4.1             field 1 of the message in field 4
//	3[].2           field 2 of every message in the repeated field 3
//	2[cached]       the value under the key "cached" of the map in field 2
//	3|2.1           field 3, or 2.1 where that is absent
//	tensor[text]    the input tensor "text" of a KServe v2 request
type Path string

// UnmarshalJSON reads a string, or a whole number for a path of one step. It
// refuses other numbers: YAML would read 4.10 as 4.1.
func (p *Path) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*p = Path(s)
		return nil
	}
	if _, err := strconv.ParseUint(string(b), 10, 32); err == nil {
		*p = Path(b)
		return nil
	}
	return fmt.Errorf(`want a path in quotes, such as "4.1", not %.20s`, b)
}

// A Tokenizer turns text into token ids, so that a policy sees the blocks that an
// engine caches and reports. It is called from many goroutines and may block until
// the context ends. What it returns is not changed. One that holds resources is an
// io.Closer, closed after its last call.
//
// A channel's config names one: a file or an encoding, which module tokenizers reads,
// or the URL of an engine's HTTP endpoint.
type Tokenizer interface {
	Tokens(ctx context.Context, in TokenizerInput) ([]uint32, error)
}

// A TokenizerInput is what is to become tokens. It is valid during the call only.
type TokenizerInput struct {
	Model string // served model name, "" = unknown
	Text  string // UTF-8; of a chat what the chat template makes of it
	// Special asks for the tokens that stand before and behind every prompt.
	Special bool
}

// tokenizers are by kind. The map does not change once packages are initialized.
var tokenizers = make(map[string]func(value string) (Tokenizer, error))

// RegisterTokenizer registers how what the config's tokenizer names is opened: kind is file, for its path, or tiktoken,
// for the name of an encoding. Packages that do so call it from init.
func RegisterTokenizer(kind string, open func(value string) (Tokenizer, error)) {
	tokenizers[kind] = open
}

// LookupTokenizer returns what is registered for a kind, nil if nothing is.
func LookupTokenizer(kind string) (open func(value string) (Tokenizer, error)) {
	return tokenizers[kind]
}
