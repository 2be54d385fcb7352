package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// Sizes of a turn: of its output, and of the input that the next turn adds.
const (
	turnOutput = 100
	turnInput  = 300
)

// kvTurns is a prompt that grows.
type kvTurns struct {
	t      testing.TB
	f      *kvFleet
	name   string
	turns  int
	prompt []uint32
}

func (f *kvFleet) turns(t testing.TB, name string) *kvTurns {
	return &kvTurns{t: t, f: f, name: name, prompt: kvPrompt(name)}
}

// next sends the next turn, and returns what the prefill engines got and computed for it.
func (c *kvTurns) next(ctx context.Context) (received, computed int) {
	c.t.Helper()
	before, had := c.f.prefilled()
	id := fmt.Sprint(c.name, " ", c.turns)
	_, err := c.f.turn(ctx, id, c.prompt, turnOutput)
	require.NoError(c.t, err)
	c.turns++
	input := workload.OutputSeed("input behind " + id)
	c.prompt = append(c.prompt, kvOutput(id, turnOutput)...)
	for i := range turnInput {
		c.prompt = append(c.prompt, workload.Token(input, i))
	}
	after, has := c.f.prefilled()
	return after - before, has - had
}

// prefilled is what the prefill engines have got and computed.
func (f *kvFleet) prefilled() (received, computed int) {
	for _, e := range f.of("p") {
		s := e.server.Stats().Engine
		received, computed = received+s.ReceivedTokens, computed+s.ComputedTokens
	}
	return received, computed
}

// turnsHeld is how many turns the decode engines keep.
func (f *kvFleet) turnsHeld() (n int) {
	for _, e := range f.of("d") {
		if !e.cut.Load() {
			n += e.server.Stats().KV.Held
		}
	}
	return n
}

// nixlFlows are the flows whose decode engines keep turns.
var nixlFlows = kvFlows[:3]

// The prefill legs of later turns pull the last output from the engine that generated it, and compute only the new
// tokens.
func TestTurnsArePulled(t *testing.T) {
	for _, flow := range nixlFlows {
		t.Run(flow.name, func(t *testing.T) {
			f := startKVFleet(t, flow, kvOptions{prefills: 1, decodes: 2, keep: time.Hour})
			session := client.NewSession("s")
			for name, ctx := range map[string]context.Context{
				"string": client.WithSession(deadline(t), "of a string"), "session": client.WithSession(deadline(t), session),
				"header": metadata.AppendToOutgoingContext(deadline(t), "x-claude-code-session-id", "of a header"),
			} {
				c := f.turns(t, name)
				received, computed := c.next(ctx)
				require.Equal(t, []int{0, splitPrompt}, []int{received, computed})
				for range 2 {
					cached := (len(c.prompt) - turnInput - turnOutput) / 16 * 16
					received, computed = c.next(ctx)
					require.Equal(t, []int{len(c.prompt) - 2*(turnInput+turnOutput) + turnOutput - 1 - cached, turnInput + 1},
						[]int{received, computed})
				}
			}
			eventually(t, "the last turns are kept", func() bool { return f.turnsHeld() == 3 })
			c := f.turns(t, "without a session")
			c.next(deadline(t))
			received, computed := c.next(deadline(t))
			require.Equal(t, []int{0, turnInput + turnOutput}, []int{received, computed})
		})
	}
}

// Nothing is pulled if the tokens, the session, the pair or the engine's life differ, and the output is right.
func TestTurnsAreNotPulled(t *testing.T) {
	f := startKVFleet(t, nixlFlows[0], kvOptions{prefills: 2, decodes: 2, keep: time.Hour,
		pair: func(id string) string { return "r" + id[1:] },
	})
	final := metadata.Pairs("x-dynamo-session-id", "s5", "x-dynamo-session-final", "true")
	for name, tt := range map[string]struct {
		ctx     func(i int) context.Context // of turn i
		between func(c *kvTurns, i int)
		turns   []bool // whether later ones are pulled
	}{
		"all alike": {turns: []bool{true, true}},
		"a changed token": {
			between: func(c *kvTurns, i int) {
				if i == 1 {
					c.prompt = slices.Clone(c.prompt)
					c.prompt[splitPrompt+turnOutput/2]++
				}
			}, turns: []bool{false, true}},
		"another session": {
			ctx:   func(i int) context.Context { return client.WithSession(deadline(t), fmt.Sprint("turn ", i)) },
			turns: []bool{false, false}},
		"another pair": {
			ctx: func(i int) context.Context {
				ctx := client.WithSession(deadline(t), "of pairs")
				return client.WithExclude(ctx, fmt.Sprint("p", i%2))
			}, turns: []bool{false, false}},
		"a final turn": {
			ctx: func(i int) context.Context {
				ctx := metadata.NewOutgoingContext(deadline(t), final)
				if i != 1 {
					ctx = metadata.AppendToOutgoingContext(deadline(t), "x-dynamo-session-id", "s5")
				}
				return ctx
			}, turns: []bool{true, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.ctx == nil {
				tt.ctx = func(int) context.Context { return client.WithSession(deadline(t), name) }
			}
			c := f.turns(t, name)
			c.next(tt.ctx(0))
			for i, want := range tt.turns {
				if tt.between != nil {
					tt.between(c, i+1)
				}
				received, _ := c.next(tt.ctx(i + 1))
				require.Equal(t, want, received > 0, i+1)
			}
		})
	}
	t.Run("an ended session", func(t *testing.T) {
		c, s := f.turns(t, "ended"), client.NewSession("ended")
		for _, want := range []bool{false, true} {
			received, _ := c.next(client.WithSession(deadline(t), s))
			require.Equal(t, want, received > 0)
		}
		s.End()
		received, _ := c.next(client.WithSession(deadline(t), s))
		require.Zero(t, received)
	})
}

// If the KV cache that a prefill leg would pull is gone, the engine computes it.
func TestTurnsThatAreGone(t *testing.T) {
	for _, flow := range nixlFlows {
		t.Run(flow.name, func(t *testing.T) {
			f := startKVFleet(t, flow, kvOptions{prefills: 2, decodes: 2, keep: time.Nanosecond})
			ctx := client.WithSession(deadline(t), "s")
			c := f.turns(t, "expired")
			c.next(ctx)
			eventually(t, "the turn is gone", func() bool { return f.turnsHeld() == 0 })
			_, before, _ := f.sums()
			received, _ := c.next(ctx)
			require.Zero(t, received)
			_, after, _ := f.sums()
			require.Equal(t, before+2, after, "the prefill leg is repeated, without it")
			f.nothingReserved()
		})
		t.Run(flow.name+" dead", func(t *testing.T) {
			o := kvOptions{prefills: 2, decodes: 2, keep: time.Hour}
			f := startKVFleet(t, flow, o)
			ctx := client.WithSession(deadline(t), "s")
			c := f.turns(t, "dead")
			c.next(ctx)
			keeps := slices.IndexFunc(f.of("d"), func(e *kvEngine) bool { return e.server.Stats().KV.Held > 0 })
			require.GreaterOrEqual(t, keeps, 0)
			e := f.of("d")[keeps]
			e.cut.Store(true)
			e.server.Kill() // the client may not have seen it when the next turn begins
			received, _ := c.next(ctx)
			require.Zero(t, received)
			f.restart(e, o)
			c.next(ctx)
			received, _ = c.next(ctx)
			require.Positive(t, received)
		})
	}
}
