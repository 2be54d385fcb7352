package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/lab/report"
	"github.com/warmpath/warmpath/internal/lab/sim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

func (s *simulate) source() string {
	if s.workload != "" {
		return s.workload
	}
	return filepath.Base(s.trace)
}

func (s *simulate) title() string {
	return fmt.Sprintf("warmpath sim: %s on %d × %s with %d clients", s.source(), s.replicas,
		strings.Join(s.engines.presets, " and "), s.clients)
}

// subject begins the sentence about the results.
func (s *simulate) subject() string {
	switch {
	case sim.Share(s.share) == sim.ShareNone, s.clients == 1 && sim.Share(s.share) != sim.ShareBroadcast:
		return ""
	case sim.Share(s.share) == sim.ShareCentral:
		return fmt.Sprintf("With one Router for %d clients", s.clients)
	}
	what := "load"
	if sim.Share(s.share) == sim.ShareBroadcast {
		what = "load and a coarse index of the caches"
	}
	return fmt.Sprintf("With %d clients that share %s every %v", s.clients, what, s.interval)
}

// room describes the bounds.
func (s *simulate) room() string {
	if s.ongoing == 0 {
		return "engines take all that comes"
	}
	words := fmt.Sprintf("a client gives an engine %d requests at once, and %d wait", s.ongoing,
		cmp.Or(s.queued, policy.DefaultMaxQueued))
	if s.queued < 0 {
		words = fmt.Sprintf("a client gives an engine %d requests at once, and the others wait", s.ongoing)
	}
	if s.patience > 0 {
		words += fmt.Sprintf(" for up to %v", s.patience)
	}
	return words
}

// fleet describes the engines.
func (s *simulate) fleet() string {
	var kinds []string
	for _, c := range s.configs {
		kinds = append(kinds, fmt.Sprintf("%s with %d tokens of KV cache", c.Preset, c.KVTokens))
	}
	return fmt.Sprintf("%d × %s, in virtual time", s.replicas, strings.Join(kinds, " and in turn "))
}

// drawn describes the seeds.
func (s *simulate) drawn() string {
	if s.seeds == 1 {
		return fmt.Sprint(s.seed)
	}
	return fmt.Sprintf("%d to %d: figures are means, counts sums, spreads the largest less the smallest; the "+
		"curves are of the first",
		s.seed, s.seed+uint64(s.seeds)-1)
}

func (s *simulate) facts(rs []workload.Request, before int, rate string) []report.Fact {
	measured := rs[before:]
	span := measured[len(measured)-1].At - measured[0].At
	shared := map[sim.Share]string{
		sim.ShareNone: "nothing", sim.ShareLoad: fmt.Sprintf("each other's load, every %v", s.interval),
		sim.ShareBroadcast: fmt.Sprintf("each other's load and what the engines have cached in superblocks of 512 "+
			"tokens, every %v", s.interval),
		sim.ShareCentral: "everything: one Router decides",
	}
	return []report.Fact{
		{Name: "Workload", Value: fmt.Sprintf("%s: %d requests in %v after the warm-up, %s; %.0f %% of their prompt "+
			"tokens are of one request only",
			s.source(), len(measured), span.Round(time.Second), rate, 100*workload.Unshared(rs, before))},
		{Name: "Engines", Value: s.fleet()},
		{Name: "Fleet", Value: cmp.Or(strings.Join(s.changes, ", "), "stays as it is")},
		{Name: "Clients", Value: fmt.Sprintf("%d, which know of each other %s", s.clients, shared[sim.Share(s.share)])},
		{Name: "Room", Value: s.room()},
		{Name: "Goodput", Value: fmt.Sprintf("first token within %v, every further one within %v in the mean", s.good.TTFT,
			s.good.TPOT)},
		{Name: "Seeds", Value: s.drawn()},
		{Name: "Baselines", Value: "policies of other projects are written from their published rules"},
	}
}
