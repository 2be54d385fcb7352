package tokenize

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// closing is a tokenizer with a file that exists only after a successful open.
type closing struct{ file chan struct{} }

func (c *closing) Tokens(context.Context, dialect.TokenizerInput) ([]uint32, error) { return nil, nil }
func (c *closing) Close() error                                                     { close(c.file); return nil }

// An opener returns a nil pointer with its error, which is not closed.
func TestTokenizerThatCannotBeOpened(t *testing.T) {
	missing := errors.New("no such file")
	dialect.RegisterTokenizer("file", func(string) (dialect.Tokenizer, error) { return (*closing)(nil), missing })
	t.Cleanup(func() { dialect.RegisterTokenizer("file", nil) })
	_, err := Open(Config{From: "tokenizer.json"}, Options{})
	require.ErrorIs(t, err, missing)
	require.ErrorContains(t, err, "tokenizer.from")
}
