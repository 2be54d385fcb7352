package extproc_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/cmd/warmpath/internal/extproc"
)

// A request as the protocol has it: pick, response, release.
func TestPick(t *testing.T) {
	p := startPicker(t, fleet, extproc.Options{}, nil)
	text := prompt(strings.Repeat("the same beginning ", 200))
	var first []string
	for range 3 {
		g := p.open(t, duplex)
		g.headers(chatHeaders(), nil, false)
		g.body(text, true)
		got := g.picked()
		require.Len(t, got, 3, "with two fallbacks")
		g.echoed(text, true)
		if first == nil {
			first = got
		}
		require.Equal(t, first[0], got[0], "the prefix decides")
		require.EqualValues(t, 1, p.deployment(t).GetReservations())
		g.responds("200", "application/json", got[0], false)
		g.chunk(`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, true)
		p.idle(t)
		g.done()
	}
}
