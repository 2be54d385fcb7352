package peers

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// withoutLog is the counted part of llm-d-kv-cache's look-up. The rest formats a log message even if nothing is
// logged.
const withoutLog = 0.3

// TestRatios prints how many times faster warmpath is. Contenders alternate in short rounds, and only the best round
// of each counts, so that a busy machine disturbs all alike. Without -v the test only shows that they run.
func TestRatios(t *testing.T) {
	rounds, each := 1, "1x"
	if testing.Verbose() {
		rounds, each = 3, "30ms"
	}
	benchtime := flag.Lookup("test.benchtime").Value
	before := benchtime.String()
	require.NoError(t, benchtime.Set(each))
	t.Cleanup(func() { require.NoError(t, benchtime.Set(before)) })

	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\twarmpath, tokens\tllm-d-kv-cache\tcounted\ttimes\twarmpath, text\tinference extension\ttimes")
	row := func(name string, b map[string]time.Duration, counted time.Duration) {
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\t%.1f\t%v\t%v\t%.1f\n", name,
			b[ourTokens], b[llmdAll], counted, times(counted, b[ourTokens]),
			b[ourText], b[theExtension], times(b[theExtension], b[ourText]))
	}
	for _, l := range layouts() {
		b := best(t, rounds, picks(l))
		row("pick, "+l.name, b, b[llmdHash]+time.Duration(withoutLog*float64(b[llmdLookup]))+b[llmdScore])
	}
	for _, n := range novelties {
		b := best(t, rounds, adds(n))
		row("8 adds, "+n.name, b, b[llmdAll])
	}
	require.NoError(t, w.Flush())
	t.Log("\n" + out.String())
}

// best returns each contender's time for one operation in its best round.
func best(t *testing.T, rounds int, contenders []contender) map[string]time.Duration {
	times := make(map[string]time.Duration)
	for range rounds {
		for _, c := range contenders {
			r := testing.Benchmark(c.run)
			require.NotZero(t, r.N, c.name)
			took := r.T / time.Duration(r.N)
			if old, ok := times[c.name]; !ok || took < old {
				times[c.name] = took
			}
		}
	}
	return times
}

func times(theirs, ours time.Duration) float64 { return float64(theirs) / float64(max(ours, 1)) }
