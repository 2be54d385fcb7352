package loadprobe

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/router/load"
)

// rank writes one load of GetLoadsResponse.
func rank(fields map[protowire.Number]uint64) (b []byte) {
	var l []byte
	l = protowire.AppendFixed64(protowire.AppendTag(l, 7, protowire.Fixed64Type), 1)
	for number, v := range fields {
		l = protowire.AppendVarint(protowire.AppendTag(l, number, protowire.VarintType), v)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, fieldLoads, protowire.BytesType), l)
}

func TestLoads(t *testing.T) {
	minus := int64(-1)
	two := append(rank(map[protowire.Number]uint64{2: 3, 3: 1, 4: 4, 6: 5000}), rank(map[protowire.Number]uint64{1: 1, 2: 2, 6: 4000})...)
	for name, c := range map[string]struct {
		answer []byte
		want   load.Report
		err    error
	}{
		"two ranks":       {two, load.Report{QueuedTokens: -1, Ongoing: 6, Waiting: 1, KVTokens: 4000}, nil},
		"an idle one":     {rank(nil), load.Report{QueuedTokens: -1}, nil},
		"only the total":  {rank(map[protowire.Number]uint64{4: 9}), load.Report{QueuedTokens: -1, Ongoing: 9}, nil},
		"negative":        {rank(map[protowire.Number]uint64{2: uint64(minus), 6: uint64(minus)}), load.Report{QueuedTokens: -1}, nil},
		"beyond belief":   {rank(map[protowire.Number]uint64{2: 1<<31 - 1, 3: 1<<31 - 1}), load.Report{QueuedTokens: -1, Ongoing: maxRequests, Waiting: maxRequests}, nil},
		"uncached tokens": {append(rank(map[protowire.Number]uint64{3: 2, 17: 900}), rank(map[protowire.Number]uint64{3: 1, 17: 70})...), load.Report{QueuedTokens: 970, Ongoing: 3, Waiting: 3}, nil},
		"no ranks":        {nil, load.Report{}, ErrNothing},
		"cut off":         {two[:len(two)-1], load.Report{}, ErrMalformed},
		"cut off, inside": {protowire.AppendBytes(protowire.AppendTag(nil, fieldLoads, protowire.BytesType), []byte{0x10}), load.Report{}, ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeLoads(c.answer, 17)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, got)
		})
	}
}

// numbers is a message of varints.
func numbers(fields map[protowire.Number]uint64) (b []byte) {
	for number, v := range fields {
		b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), v)
	}
	return b
}

func TestLoadInfo(t *testing.T) {
	ranks := func(of ...map[protowire.Number]uint64) (b []byte) {
		for _, fields := range of {
			b = protowire.AppendBytes(protowire.AppendTag(b, 20, protowire.BytesType), numbers(fields))
		}
		return b
	}
	for name, c := range map[string]struct {
		answer []byte
		want   load.Report
		err    error
	}{
		"the engine":    {append(numbers(map[protowire.Number]uint64{3: 4, 4: 2, 6: 10, 7: 99, 9: 800}), ranks(map[protowire.Number]uint64{2: 4, 3: 2})...), load.Report{Ongoing: 6, Waiting: 2, QueuedTokens: 800}, nil},
		"its ranks":     {ranks(map[protowire.Number]uint64{1: 0, 2: 4, 3: 2}, map[protowire.Number]uint64{1: 1, 2: 1}), load.Report{Ongoing: 7, Waiting: 2, QueuedTokens: -1}, nil},
		"idle":          {numbers(map[protowire.Number]uint64{3: 0, 9: 0}), load.Report{}, nil},
		"beyond belief": {numbers(map[protowire.Number]uint64{3: 1 << 63}), load.Report{Ongoing: maxRequests, QueuedTokens: -1}, nil},
		"nothing":       {numbers(map[protowire.Number]uint64{7: 5}), load.Report{}, ErrNothing},
		"cut off":       {[]byte{0x18}, load.Report{}, ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeLoad(c.answer)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzLoads(f *testing.F) {
	f.Add(rank(map[protowire.Number]uint64{2: 3, 3: 1, 4: 4, 6: 5000}))
	f.Fuzz(func(t *testing.T, answer []byte) {
		l, err := decodeLoads(answer, 17)
		require.True(t, err != nil || l.Ongoing >= 0 && l.Ongoing <= maxRequests && l.KVTokens >= 0)
	})
}
