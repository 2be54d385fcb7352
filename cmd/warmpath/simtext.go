package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/warmpath/warmpath/internal/sim"
)

// more is the figures that only the simulator has.
func more(all *sim.Comparison) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	spread := all.Results[0].Spread != nil
	fmt.Fprint(w, "policy\toutput tokens/s\tpreemptions\tKV busiest ÷ mean")
	if all.Results[0].FleetChange != nil {
		fmt.Fprint(w, "\tcache lost\tunavoidable\tratio")
	}
	if spread {
		fmt.Fprint(w, "\tspread: cached tokens\tTTFT ms mean\tp99\tms per token mean\tgoodput")
	}
	fmt.Fprintln(w)
	for i := range all.Results {
		r := &all.Results[i]
		fmt.Fprintf(w, "%s\t%.0f\t%d\t%.2f", r.Policy, r.OutputTokensPerS, r.Preemptions, r.KVImbalance)
		if c := r.FleetChange; c != nil {
			fmt.Fprintf(w, "\t%.1f %%\t%.1f %%\t%.2f", 100*c.Lost, 100*c.Unavoidable, c.Ratio)
		}
		if p := r.Spread; spread {
			fmt.Fprintf(w, "\t%.1f %%\t%.1f\t%.1f\t%.2f\t%.1f %%", 100*p.CachedTokenRatio, p.TTFT.Mean, p.TTFT.P99, p.TPOT.Mean, 100*p.Goodput)
		}
		fmt.Fprintln(w)
	}
	w.Flush() //nolint:errcheck // A strings.Builder takes everything.
	return b.String()
}
