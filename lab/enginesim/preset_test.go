package enginesim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPass(t *testing.T) {
	chunk := func(pairs ...int) (w Work) {
		for i := 0; i < len(pairs); i += 2 {
			w.chunk(pairs[i], pairs[i+1])
		}
		return w
	}
	decodes := func(n, ctx int, used float64) (w Work) {
		for range n {
			w.decode(ctx)
		}
		w.KVUsed = used
		return w
	}
	mixed := chunk(1000, 0)
	mixed.decode(500)
	mixed.KVUsed = 0.5
	for _, c := range []struct {
		name, preset string
		work         Work
		ms           float64
	}{
		{"nothing but the weights", "h100-14b", Work{}, 16.6},
		{"a full chunk", "h100-14b", chunk(8192, 0), 16.6 + 8192*0.0394 + 2e-6*8192*4096},
		{"a chunk after context", "h100-14b", chunk(8192, 8192), 16.6 + 8192*0.0394 + 2e-6*8192*(8192+4096)},
		{"two chunks", "h100-14b", chunk(100, 0, 50, 16), 16.6 + 150*0.0394 + 2e-6*(100*50+50*(16+25))},
		{"decodes", "h100-14b", decodes(10, 1000, 0), 16.6 + 10*0.027 + 6e-5*10_000},
		{"mixed", "h100-14b", mixed, 16.6 + 39.4 + 2e-6*1000*500 + 0.027 + 6e-5*500},
		{"the larger engine", "2xh100-8b", mixed, 9.9 + 17.7 + 1e-6*1000*500 + 0.0028 + 2e-5*500},
		{"mocker, prefill", "mocker", chunk(1000, 500), 16.5 + 15.18 + 0.421},
		{"mocker, decode", "mocker", decodes(3, 10, 0.5), 5.74 + 27.005 - 6.435},
		{"mocker, mixed adds", "mocker", mixed, 16.5 + 15.18 + 0.421 + 5.74 + 27.005 - 6.435},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := FindPreset(c.preset)
			require.NoError(t, err)
			require.InDelta(t, c.ms, float64(p.Pass(c.work))/float64(time.Millisecond), 1e-5)
		})
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name   string
		config Config
		err    string
	}{
		{"zero", Config{}, ""},
		{"unknown preset", Config{Preset: "h200"}, `preset "h200" is not one of h100-14b, 2xh100-8b, mocker`},
		{"mocker without memory", Config{Preset: "mocker"}, "KVTokens is required"},
		{"mocker", Config{Preset: "mocker", KVTokens: 4096}, ""},
		{"less than a block", Config{KVTokens: 15}, "less than a block"},
		{"negative block", Config{BlockSize: -1}, "BlockSize -1 is not in"},
		{"negative budget", Config{MaxBatchedTokens: -1}, "MaxBatchedTokens -1 is not in"},
		{"negative sequences", Config{MaxSequences: -1}, "MaxSequences -1 is not in"},
		{"negative length", Config{MaxModelLen: -1}, "MaxModelLen -1 is negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.config)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
	e, err := New(Config{KVTokens: 1000})
	require.NoError(t, err)
	require.Equal(t, Config{Preset: "h100-14b", KVTokens: 992, BlockSize: 16, MaxBatchedTokens: 8192, MaxSequences: 1024, MaxModelLen: 992}, e.Config())
}
