package tokenize

import (
	"context"
	"errors"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// Errors of a Tokenizer, for prompts that stay text.
var (
	// ErrChat: the prompt is a chat, and the tokenizer takes text only.
	ErrChat = errors.New("tokenize: the prompt is a chat: set tokenizer.chat_template, or a tokenizer.url that takes messages")
	// ErrMedia: the prompt has images or the like, whose tokens depend on the model.
	ErrMedia = errors.New("tokenize: the prompt has more than text")
	// ErrNotText: the prompt is several prompts, or not UTF-8.
	ErrNotText = errors.New("tokenize: the prompt is a batch, or not UTF-8")
)

// An Input is what is to become tokens. It is valid during the call only.
type Input struct {
	Model string // served model name, "" = unknown
	Text  string // UTF-8
	// Chat is set in place of Text where there are turns and no template.
	Chat *dialect.Chat
	// Special asks for the tokens that stand before and behind every prompt.
	Special bool
}

// A Tokenizer turns text into token ids. It is called from many goroutines and may
// block until the context ends. Nobody changes what it returns. One that holds
// resources is an io.Closer, closed after its last call.
type Tokenizer interface {
	Tokens(ctx context.Context, in Input) ([]uint32, error)
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

// A Template writes a chat as the text that a model was trained on.
type Template interface {
	// Render is called from many goroutines.
	Render(c dialect.Chat) (string, error)
}
