package requestkey

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"
)

// turnOf is a turn of the prompt 1, 2, 3 with the output 7, 8: the messages, of which the last has parameters for
// that many tokens.
func turnOf(t testing.TB, method string, tokens int) (messages []any, params []byte) {
	json := fmt.Sprintf(`{"do_remote_decode": true, "remote_num_tokens": %d, "remote_blocks_expiry_time": 7.5, `+
		`"remote_block_ids": [[1,  2]]}`, tokens)
	if method == smgMethod {
		return []any{
			build(t, nil, pv{"1.1", []uint32{7}}), build(t, nil, pv{"1.1", []uint32{8}}),
			build(t, nil, pv{"2.1", []uint32{8}}, pv{"2.12", json}),
		}, []byte(json)
	}
	s := new(structpb.Struct)
	require.NoError(t, s.UnmarshalJSON([]byte(json)))
	return []any{
		build(t, nil, pv{"2.4", []uint32{7}}),
		build(t, nil, pv{"2.4", []uint32{8}}, pv{"2.8.6.1[do_remote_decode].4", true},
			pv{"2.8.6.1[remote_num_tokens].2", float64(tokens)}, pv{"2.8.6.1[remote_blocks_expiry_time].2", 7.5}),
	}, nil
}

// readTurn reads the messages of a turn.
func readTurn(t *Turn, messages []any) (held Held, ok bool) {
	for i, msg := range messages {
		if held, ok = t.Read(msg); ok && i < len(messages)-1 {
			panic("before the last message")
		}
	}
	return held, ok
}

// A held turn is for prompts that begin with its tokens, in the same context, and go on.
func TestTurn(t *testing.T) {
	table := mustTable(t)
	for _, method := range []string{vllmMethod, smgMethod} {
		for _, tokens := range []int{4, 5} { // the last token of the output is not computed as a rule
			t.Run(fmt.Sprint(method, tokens), func(t *testing.T) {
				_, fields := resuming(t, method)
				m, ids := table.Lookup(method), fields[1].path
				prompt := func(tokens []uint32, more ...pv) any {
					return build(t, nil, append([]pv{{"1", "next"}, {ids, tokens}}, more...)...)
				}
				turn := m.Turn(prompt([]uint32{1, 2, 3}))
				require.NotNil(t, turn)
				messages, params := turnOf(t, method, tokens)
				held, ok := readTurn(turn, messages)
				require.True(t, ok)
				if params != nil {
					require.Equal(t, params, held.Params)
				}
				require.Equal(t, tokens, heldTokens(held.Params))
				next := []uint32{1, 2, 3, 7, 8, 9}
				require.True(t, held.Begins(m, prompt(next)))
				require.False(t, held.Begins(m, prompt(next[:tokens])), "it does not go on")
				require.Equal(t, tokens == 4, held.Begins(m, prompt([]uint32{1, 2, 3, 7, 6, 9})), "not held")
				for i := range tokens {
					other := slices.Clone(next)
					other[i]++
					require.False(t, held.Begins(m, prompt(other)), i)
				}
				if method == vllmMethod {
					for _, other := range []pv{{"2", "model"}, {"10.2", "salt"}, {"15", "adapter"}, {"14.6", "image"},
						{"10.1", true}, {"11", uint32(2)}} {
						require.False(t, held.Begins(m, prompt(next, other)), other)
					}
					require.True(t, held.Begins(m, prompt(next, pv{"5", float32(1)}, pv{"8.4", []string{"x"}})))
				}
				for _, other := range []int{0, 3, 6} { // another count than that of the messages
					messages, _ := turnOf(t, method, other)
					_, ok = readTurn(m.Turn(prompt([]uint32{1, 2, 3})), messages)
					require.False(t, ok, other)
				}
			})
		}
	}
}

// An output in one message.
func TestTurnWithoutStream(t *testing.T) {
	m := mustTable(t).Lookup(smgMethod)
	turn := m.Turn(build(t, nil, pv{"2.2", []uint32{1, 2, 3}}))
	held, ok := turn.Read(build(t, nil, pv{"2.1", []uint32{7, 8}},
		pv{"2.12", `{"do_remote_decode": true, "remote_num_tokens": 4, "remote_blocks_expiry_time": 7.5}`}))
	require.True(t, ok)
	require.True(t, held.Begins(m, build(t, nil, pv{"2.2", []uint32{1, 2, 3, 7, 8}})))
}

// Requests with unknown tokens have no turn, and parameters of other connectors offer nothing.
func TestNoTurn(t *testing.T) {
	table := mustTable(t)
	m := table.Lookup(smgMethod)
	ids := pv{"2.2", []uint32{1, 2, 3}}
	for name, request := range map[string]any{
		"text": build(t, nil, pv{"3", "hello"}), "encoded": marshal(t, build(t, nil, ids)), "nothing": nil,
		"a later field": build(t, nil, ids, pv{"99", uint32(1)}), "nil": (*genRequest)(nil),
	} {
		require.Nil(t, m.Turn(request), name)
	}
	require.Nil(t, table.Lookup("/openengine.v1.Inference/Generate").Turn(build(t, nil, pv{"4.1", []uint32{1}})))
	for _, params := range []string{
		``, `{}`, `[]`, `{"remote_num_tokens": 4, "remote_blocks_expiry_time": 7}`,
		`{"do_remote_decode": true, "remote_num_tokens": 4.5, "remote_blocks_expiry_time": 7}`,
		`{"do_remote_decode": true, "remote_num_tokens": "4", "remote_blocks_expiry_time": 7}`,
		`{"do_remote_prefill": true, "remote_num_tokens": 4, "remote_blocks_expiry_time": 7}`,
		`{"do_remote_decode": true, "remote_num_tokens": 4, "remote_blocks_expiry_time": null}`,
	} {
		_, ok := readTurn(m.Turn(build(t, nil, ids)), []any{
			build(t, nil, pv{"1.1", []uint32{7}}), build(t, nil, pv{"1.1", []uint32{8}}), build(t, nil, pv{"2.12", params})})
		require.False(t, ok, params)
	}
}

// The prefill leg has its pull parameters in place of its own.
func TestPatchPull(t *testing.T) {
	table, transfer := mustTable(t), Transfer{}
	for method, want := range map[string][]pv{
		vllmMethod: {{"8.1", uint32(1)}, {"8.2", uint32(1)}, {"10.3.1[do_remote_decode].4", true},
			{"10.3.1[remote_num_tokens].2", float64(4)}, {"10.3.1[remote_blocks_expiry_time].2", 7.5}},
		smgMethod: {{"4.8", uint32(1)}, {"4.9", uint32(1)},
			{"8", `{"do_remote_decode": true, "remote_num_tokens": 4, "remote_blocks_expiry_time": 7.5, ` +
				`"remote_block_ids": [[1,  2]]}`}},
	} {
		m := table.Lookup(method)
		messages, _ := turnOf(t, method, 4)
		_, fields := resuming(t, method)
		held, ok := readTurn(m.Turn(build(t, nil, fields...)), messages)
		require.True(t, ok)
		transfer.Pull = held.Params
		if method == smgMethod {
			fields = append(fields, pv{"5", uint32(0)})
		}
		requireMerged(t, fields, m.Legs().PatchPrefill(nil, &transfer), want)
	}
}
