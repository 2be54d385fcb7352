package tokenize

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// A Resumer is a Tokenizer of text that can take up its work in the middle.
type Resumer interface {
	dialect.Tokenizer
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

// A chatTokenizer is a Tokenizer that takes chats too, where no template writes them as text.
type chatTokenizer interface {
	chatTokens(ctx context.Context, model string, c requestkey.Chat) ([]uint32, error)
}

// A ChatTemplate writes a chat as the text that a model was trained on.
type ChatTemplate interface {
	// Render is called from many goroutines.
	Render(c requestkey.Chat) (string, error)
}

// Errors of prompts that stay text.
var (
	// ErrChat: the prompt is a chat, and the tokenizer takes text only.
	ErrChat = errors.New("tokenize: the prompt is a chat: set tokenizer.chat_template, or a tokenizer.url that takes messages")
	// ErrNotText: the prompt is several prompts, or not UTF-8.
	ErrNotText = errors.New("tokenize: the prompt is a batch, or not UTF-8")
	// ErrMedia: the prompt has images or the like, whose tokens depend on the model.
	ErrMedia = errors.New("tokenize: the prompt has more than text")
)

// chatTemplates is how a chat_template is opened, nil = no package that does is linked.
var chatTemplates atomic.Pointer[func(path string) (ChatTemplate, error)]

// RegisterChatTemplate registers how a chat_template is opened.
func RegisterChatTemplate(open func(path string) (ChatTemplate, error)) { chatTemplates.Store(&open) }

// openTokenizer opens the value of a field. The error names the field, and the import
// that is missing.
func openTokenizer(field, value string) (dialect.Tokenizer, error) {
	return opened(field, value, dialect.LookupTokenizer(field))
}

// openChatTemplate opens a chat_template likewise.
func openChatTemplate(path string) (ChatTemplate, error) {
	var open func(string) (ChatTemplate, error)
	if p := chatTemplates.Load(); p != nil {
		open = *p
	}
	return opened("chat_template", path, open)
}

func opened[T any](field, value string, open func(string) (T, error)) (T, error) {
	if open == nil {
		var none T
		return none, fmt.Errorf("%s: this program cannot read it; it must import _ %q", field,
			"github.com/warmpath/warmpath/tokenizers")
	}
	t, err := open(value)
	if err != nil {
		return t, fmt.Errorf("%s: %w", field, err)
	}
	return t, nil
}
