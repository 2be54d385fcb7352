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
		"no ranks":        {nil, load.Report{}, ErrNothing},
		"cut off":         {two[:len(two)-1], load.Report{}, ErrMalformed},
		"cut off, inside": {protowire.AppendBytes(protowire.AppendTag(nil, fieldLoads, protowire.BytesType), []byte{0x10}), load.Report{}, ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeLoads(c.answer)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzLoads(f *testing.F) {
	f.Add(rank(map[protowire.Number]uint64{2: 3, 3: 1, 4: 4, 6: 5000}))
	f.Fuzz(func(t *testing.T, answer []byte) {
		l, err := decodeLoads(answer)
		require.True(t, err != nil || l.Ongoing >= 0 && l.Ongoing <= maxRequests && l.KVTokens >= 0)
	})
}
