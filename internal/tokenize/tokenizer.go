package tokenize

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// A Segmenter is a Tokenizer of text that can cut it in segments: the tokens of a text are those of its segments, one
// after the other. The tokens of a segment depend on its own text, and on whether it is the first or the last.
type Segmenter interface {
	dialect.Tokenizer
	// Cut returns where the segment ends that begins at from: 0, or the end of another. It is the same in all texts that
	// are equal up to some bytes behind it.
	Cut(text string, from int) int
	// Encode appends the tokens of the segment text[from:to] to dst.
	Encode(ctx context.Context, dst []uint32, text string, from, to int) ([]uint32, error)
	// Around returns the tokens that stand before and behind every prompt.
	Around() (before, after []uint32)
}

// A ChatTemplate writes a chat as the text that a model was trained on.
type ChatTemplate interface {
	// Render is called from many goroutines.
	Render(c requestkey.Chat) (string, error)
}

// Errors of prompts that stay text.
var (
	// ErrChat: the prompt is a chat, and the tokenizer takes text only.
	ErrChat = errors.New("tokenize: the prompt is a chat: set tokenizer.chat_template, or in tokenizer.from an endpoint that takes messages")
	// ErrNotText: the prompt is several prompts, or not UTF-8.
	ErrNotText = errors.New("tokenize: the prompt is a batch, or not UTF-8")
	// ErrMedia: the prompt has images or the like, whose tokens depend on the model.
	ErrMedia = errors.New("tokenize: the prompt has more than text")
)

// chatTemplates is how a chat_template is opened, nil = no package that does is linked.
var chatTemplates func(path string) (ChatTemplate, error)

// RegisterChatTemplate registers how a chat_template is opened. It is called from init.
func RegisterChatTemplate(open func(path string) (ChatTemplate, error)) { chatTemplates = open }

// opened opens the value of a field. The error names the field, and the import that is missing.
func opened[T any](field, value string, open func(string) (T, error)) (T, error) {
	var none T
	if open == nil {
		return none, fmt.Errorf("%s: this program cannot read it; it must import _ %q", field,
			"github.com/warmpath/warmpath/tokenizers")
	}
	t, err := open(value)
	if err != nil {
		return none, fmt.Errorf("%s: %w", field, err)
	}
	return t, nil
}
