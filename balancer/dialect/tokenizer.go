package dialect

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// A Tokenizer turns text into token ids, so that a policy sees the blocks that an
// engine caches and reports. It is called from many goroutines and may block until
// the context ends. What it returns is not changed. One that holds resources is an
// io.Closer, closed after its last call.
//
// A channel's config names one: a file or an encoding, which packages of the module
// tokenizers read, or the URL of an engine's HTTP endpoint.
type Tokenizer interface {
	Tokens(ctx context.Context, in TokenizerInput) ([]uint32, error)
}

// A TokenizerInput is what is to become tokens. It is valid during the call only.
type TokenizerInput struct {
	Model string // served model name, "" = unknown
	Text  string // UTF-8
	// Chat is set in place of Text where there are turns and no template.
	Chat *Chat
	// Special asks for the tokens that stand before and behind every prompt.
	Special bool
}

// A Resumer is a Tokenizer of text that can take up its work in the middle.
type Resumer interface {
	Tokenizer
	// Encode appends the tokens of text[from:] to dst, without those of Around; from
	// is 0 or the At of a Cut of a text that begins with the same Seen bytes. If cuts
	// is not nil, those of the text are appended to it.
	Encode(ctx context.Context, dst []uint32, text string, from int, cuts *[]Cut) ([]uint32, error)
	// Around returns the tokens that stand before and behind every prompt.
	Around() (before, after []uint32)
}

// A Cut is a place in a text at which encoding may be taken up again.
type Cut struct {
	At     int // in the text, a character's first byte; above from
	Tokens int // from from to here
	Seen   int // the tokens before At are the same for every text that begins with these bytes
}

// A ChatTemplate writes a chat as the text that a model was trained on.
type ChatTemplate interface {
	// Render is called from many goroutines.
	Render(c Chat) (string, error)
}

// Errors of a Tokenizer, for prompts that stay text.
var (
	// ErrChat: the prompt is a chat, and the tokenizer takes text only.
	ErrChat = errors.New("tokenize: the prompt is a chat: set tokenizer.chat_template, or a tokenizer.url that takes messages")
	// ErrNotText: the prompt is several prompts, or not UTF-8.
	ErrNotText = errors.New("tokenize: the prompt is a batch, or not UTF-8")
)

// tokenizerPackage is what a program imports for files, encodings and chat templates.
const tokenizerPackage = "github.com/warmpath/warmpath/tokenizers"

// tokenizers holds how the values of config fields are opened; nothing is opened under its lock.
var tokenizers = struct {
	sync.RWMutex // guards the fields below
	open         map[string]func(string) (Tokenizer, error)
	template     func(string) (ChatTemplate, error)
}{open: make(map[string]func(string) (Tokenizer, error))}

// RegisterTokenizer registers how the value of a field of the config's tokenizer,
// file or tiktoken, is opened. Packages that do so call it from init.
func RegisterTokenizer(field string, open func(value string) (Tokenizer, error)) {
	tokenizers.Lock()
	defer tokenizers.Unlock()
	tokenizers.open[field] = open
}

// RegisterChatTemplate registers how a chat_template is opened.
func RegisterChatTemplate(open func(path string) (ChatTemplate, error)) {
	tokenizers.Lock()
	defer tokenizers.Unlock()
	tokenizers.template = open
}

// OpenTokenizer opens the value of a field. The error names the field, and the import
// that is missing.
func OpenTokenizer(field, value string) (Tokenizer, error) {
	tokenizers.RLock()
	open := tokenizers.open[field]
	tokenizers.RUnlock()
	return opened(field, value, open)
}

// OpenChatTemplate opens a chat_template likewise.
func OpenChatTemplate(path string) (ChatTemplate, error) {
	tokenizers.RLock()
	open := tokenizers.template
	tokenizers.RUnlock()
	return opened("chat_template", path, open)
}

func opened[T any](field, value string, open func(string) (T, error)) (T, error) {
	if open == nil {
		var none T
		return none, fmt.Errorf("%s: this program cannot read it; it must import _ %q", field, tokenizerPackage)
	}
	t, err := open(value)
	if err != nil {
		return t, fmt.Errorf("%s: %w", field, err)
	}
	return t, nil
}
