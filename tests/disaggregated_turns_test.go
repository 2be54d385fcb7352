package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/lab/race"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// Sizes of a turn: of its output, and of the input that the next turn adds.
const (
	turnOutput = 100
	turnInput  = 300
	long       = 24 * time.Hour // of engine time, which runs 50 times as fast as the clock
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
	c.goOn(id)
	after, has := c.f.prefilled()
	return after - before, has - had
}

// goOn puts the answer to a turn, and what comes behind it, into the prompt.
func (c *kvTurns) goOn(id string) {
	c.turns++
	input := workload.OutputSeed("input behind " + id)
	c.prompt = append(c.prompt, kvOutput(id, turnOutput)...)
	for i := range turnInput {
		c.prompt = append(c.prompt, workload.Token(input, i))
	}
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
			f := startKVFleet(t, flow, kvOptions{prefills: 1, decodes: 2, lease: long, keep: long})
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
	f := startKVFleet(t, nixlFlows[0], kvOptions{prefills: 2, decodes: 2, lease: long, keep: long,
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
			f := startKVFleet(t, flow, kvOptions{prefills: 2, decodes: 2, lease: long, keep: time.Microsecond})
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
			f.nothingReserved()
		})
		t.Run(flow.name+" dead", func(t *testing.T) {
			o := kvOptions{prefills: 2, decodes: 2, lease: long, keep: long}
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

// Engines die and come back, and turns expire, while conversations go on: no answer is wrong, and no call is lost that
// has none of its own.
func TestTurnsUnderLoad(t *testing.T) {
	calm := race.Of[int64](24, 6) // turns between two deaths
	for _, flow := range []kvFlow{kvFlows[0], kvFlows[2]} {
		t.Run(flow.name, func(t *testing.T) {
			t.Parallel()
			o := kvOptions{prefills: 2, decodes: 2, lease: 3 * time.Minute, keep: 3 * time.Minute,
				config: `{"policy":{"prefix_cache_affinity":{}},"retry_ratio":"off","max_attempts":8}`}
			f := startKVFleet(t, flow, o) // both engines of a call may die, and what it pulls expire
			all := make([]*kvTurns, 4)
			turns := startLoad(t, len(all), func(w, i int) {
				c := all[w]
				if c == nil || c.turns > 5 {
					c = f.turns(t, fmt.Sprint(i, " of ", w))
					all[w] = c
				}
				id := fmt.Sprint(c.name, " ", i)
				messages, err := f.turn(client.WithSession(deadlineOf(time.Minute), c.name), id, c.prompt, turnOutput)
				switch {
				case err == nil:
					c.goOn(id)
				case messages == 0, status.Code(err) != codes.Unavailable:
					t.Errorf("%s: %v", id, err)
				}
			})
			turns.advance(5 * calm)
			received, _ := f.prefilled()
			require.Positive(t, received)
			f.killInTurn(o, func() { turns.advance(calm) })
			turns.end()
			f.nothingReserved()
		})
	}
}
