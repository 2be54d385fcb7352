package dialect

import "context"

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
