package dialect

// A Dialect describes where the request key and the usage of some methods stand. The
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
	// an adapter. A tensor holds sampling parameters instead: of them lora_name, before Adapter.
	JSONBody Path `json:"json_body,omitempty"`

	// Usage is where responses say what the call cost.
	Usage Usage `json:"usage,omitzero"`

	// Abort is the method that ends a request: its field 1 is the request id. It is called
	// where the caller went away and RequestID was set in the message, for engines that do not
	// notice the end of a call, or late.
	Abort string `json:"abort,omitempty"`

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
