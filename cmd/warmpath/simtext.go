package main

import (
	"fmt"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
)

// more are the figures that only the simulator has, and with several seeds how far they differ.
func more(all *sim.Comparison) []report.Table {
	figures := report.Table{Columns: []string{"policy", "output tokens/s", "preemptions", "KV busiest ÷ mean"}}
	changed := all.Results[0].FleetChange != nil
	if changed {
		figures.Columns = append(figures.Columns, "cache lost", "unavoidable", "ratio")
	}
	spread := report.Table{Columns: []string{
		"policy", "spread: cached tokens", "TTFT ms mean", "p50", "p99", "ms per token mean", "p99", "goodput", "busiest ÷ mean",
	}}
	if changed {
		spread.Columns = append(spread.Columns, "cache lost")
	}
	for i := range all.Results {
		r := &all.Results[i]
		row := []string{r.Policy, fmt.Sprintf("%.0f", r.OutputTokensPerS), fmt.Sprint(r.Preemptions), fmt.Sprintf("%.2f", r.KVImbalance)}
		if c := r.FleetChange; c != nil {
			row = append(row, percent(c.Lost), percent(c.Unavoidable), fmt.Sprintf("%.2f", c.Ratio))
		}
		figures.Rows = append(figures.Rows, row)
		if p := r.Spread; p != nil {
			row := []string{
				r.Policy, percent(p.CachedTokenRatio), millis(p.TTFT.Mean), millis(p.TTFT.P50), millis(p.TTFT.P99), fmt.Sprintf("%.2f", p.TPOT.Mean),
				fmt.Sprintf("%.2f", p.TPOT.P99), percent(p.Goodput), fmt.Sprintf("%.2f", p.MaxOverMeanLoad),
			}
			if changed {
				row = append(row, percent(p.LostCache))
			}
			spread.Rows = append(spread.Rows, row)
		}
	}
	if spread.Rows == nil {
		return []report.Table{figures}
	}
	return []report.Table{figures, spread}
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func millis(ms float64) string { return fmt.Sprintf("%.1f", ms) }
