package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/codes"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// printStatus prints the tables of all deployments, with rates where before is another look at the same server.
func printStatus(w io.Writer, now, before *warmpathv1.GetStatusResponse) error {
	uptime := time.Duration(now.GetUptimeMs()) * time.Millisecond
	if _, err := fmt.Fprintf(w, "server %s, up %v\n", printable(now.GetIncarnation()),
		uptime.Round(time.Second)); err != nil {
		return err
	}
	for _, d := range now.GetDeployments() {
		if err := printDeployment(w, d, pastOf(d, now, before)); err != nil {
			return err
		}
	}
	return nil
}

// past is an earlier look at a deployment; the zero value is none.
type past struct {
	*warmpathv1.DeploymentStatus
	seconds float64 // ago
}

func pastOf(d *warmpathv1.DeploymentStatus, now, before *warmpathv1.GetStatusResponse) past {
	if before.GetIncarnation() != now.GetIncarnation() || before.GetUptimeMs() >= now.GetUptimeMs() {
		return past{}
	}
	for _, old := range before.GetDeployments() {
		if old.GetName() == d.GetName() {
			return past{old, float64(now.GetUptimeMs()-before.GetUptimeMs()) / 1000}
		}
	}
	return past{}
}

// rate is what was added since, for each second, in brackets; empty where that is not known.
func (p past) rate(now, then uint64) string {
	if p.DeploymentStatus == nil || now < then {
		return ""
	}
	return " (" + humanize.FtoaWithDigits(float64(now-then)/p.seconds, 1) + "/s)"
}

func printDeployment(w io.Writer, d *warmpathv1.DeploymentStatus, p past) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\ndeployment %s  policy %s  watchers %d  reservations %d  queued %d\n", printable(d.GetName()),
		printable(d.GetPolicy()), d.GetWatchers(), d.GetReservations(), d.GetQueued())
	fmt.Fprintf(&b, "decisions  %s\n", decisionsOf(d, p))
	if lost := lostOf(d); lost != "" {
		fmt.Fprintf(&b, "lost       %s\n", lost)
	}
	if c := d.GetCachedTokens(); c != nil {
		fmt.Fprintf(&b, "cached     %s of the reported prompt tokens, %s predicted\n",
			part(c.GetMeasured(), c.GetPrompt()), part(c.GetPredicted(), c.GetPrompt()))
	}
	if x := d.GetShadow(); x != nil {
		fmt.Fprintf(&b, "shadow     %s: %d of %s elsewhere\n", printable(x.GetPolicy()), x.GetDiffering(),
			counted(x.GetDecisions(), "decision"))
	}
	if x := d.GetIndex(); x != nil {
		fmt.Fprintf(&b, "index      %s, %s, %d evicted, %s broadcast\n", humanize.IBytes(x.GetBytes()),
			counted(x.GetBlocks(), "block"), x.GetEvictions(), counted(x.GetSuperblocks(), "superblock"))
	}
	fmt.Fprintf(&b, "broadcast  %s%s in %s%s\n", humanize.IBytes(d.GetBroadcastBytes()),
		p.rate(d.GetBroadcastBytes(), p.GetBroadcastBytes()),
		counted(d.GetBroadcastMessages(), "message"), p.rate(d.GetBroadcastMessages(), p.GetBroadcastMessages()))
	if c := d.GetCluster(); c != nil {
		fmt.Fprintf(&b, "cluster    %s; %s%s sent, %s%s received, %s\n", peersOf(c),
			humanize.IBytes(c.GetSentBytes()), p.rate(c.GetSentBytes(), p.GetCluster().GetSentBytes()),
			humanize.IBytes(c.GetReceivedBytes()), p.rate(c.GetReceivedBytes(), p.GetCluster().GetReceivedBytes()),
			counted(c.GetGaps(), "gap"))
	}
	for _, r := range d.GetReplicas() { // before the table, where a terminal is wide enough for them
		if problems := problemsOf(r); problems != "" {
			fmt.Fprintf(&b, "problem    %s: %s\n", printable(r.GetId()), printable(problems))
		}
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "REPLICA\tSTATE\tONGOING\tQUEUED TOKENS\tCACHED TOKENS\tEVENTS\tGAPS\tORPHANS\tLAG\tADDRESS")
	for _, r := range d.GetReplicas() {
		fmt.Fprintln(t, strings.Join(replicaCells(r), "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

func decisionsOf(d *warmpathv1.DeploymentStatus, p past) string {
	before := make(map[string]uint64)
	for _, c := range p.GetDecisions() {
		before[c.GetPolicy()+" "+c.GetReason()] = c.GetCount()
	}
	all := make([]string, len(d.GetDecisions()))
	for i, c := range d.GetDecisions() {
		name := c.GetReason()
		if c.GetPolicy() != d.GetPolicy() {
			name = c.GetPolicy() + "/" + name
		}
		all[i] = fmt.Sprintf("%s %d%s", printable(name), c.GetCount(),
			p.rate(c.GetCount(), before[c.GetPolicy()+" "+c.GetReason()]))
	}
	return cmp.Or(strings.Join(all, "  "), "none: clients that watch decide for themselves")
}

// peersOf describes the other servers of a cluster.
func peersOf(c *warmpathv1.ClusterStatus) string {
	var all []string
	if !c.GetConnected() {
		all = append(all, "cut off")
	}
	for _, x := range c.GetPeers() {
		state := "in sync"
		switch {
		case !x.GetInSync():
			state = "catches up"
		case !x.GetSameConfig():
			state = "has another config"
		}
		all = append(all, printable(x.GetOrigin())+" "+state)
	}
	return cmp.Or(strings.Join(all, ", "), "no other server")
}

func part(n, of uint64) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(of, 1))) }

// lostOf describes what went wrong; empty if nothing has.
func lostOf(d *warmpathv1.DeploymentStatus) string {
	var all []string
	if n := d.GetReservationsExpired(); n > 0 {
		all = append(all, counted(n, "reservation")+" expired")
	}
	if n := d.GetRegistrationsExpired(); n > 0 {
		all = append(all, counted(n, "registration")+" expired")
	}
	for _, f := range d.GetFailures() {
		all = append(all, fmt.Sprintf("%s %v", counted(f.GetCount(), "pick"), codes.Code(f.GetCode())))
	}
	return strings.Join(all, ", ")
}

func replicaCells(r *warmpathv1.ReplicaStatus) []string {
	state, ongoing := r.GetState(), fmt.Sprint(r.GetOngoing())
	if r.GetStale() {
		state += ", stale"
	}
	if most := r.GetMaxOngoingRequests(); most > 0 {
		ongoing += fmt.Sprintf(" of %d", most)
	}
	cached, events, gaps, orphans, lag := "-", "-", "-", "-", "-"
	if e := r.GetEvents(); e != nil {
		cached = fmt.Sprint(e.GetBlocks() * uint64(e.GetBlockTokens()))
		events, gaps = fmt.Sprintf("%d of %d", e.GetConnected(), e.GetStreams()), fmt.Sprint(e.GetGaps())
		orphans, lag = fmt.Sprint(e.GetOrphaned()), (time.Duration(e.GetLagUs()) * time.Microsecond).String()
	}
	if kv := r.GetKvTokens(); kv > 0 {
		cached += fmt.Sprintf(" of %d", kv)
	}
	if r.GetRole() != "" {
		state += ", " + r.GetRole()
	}
	all := []string{r.GetId(), state, ongoing, fmt.Sprint(r.GetQueuedTokens()), cached, events, gaps, orphans, lag,
		r.GetAddress()}
	for i := range all {
		all[i] = printable(all[i])
	}
	return all
}

// problemsOf is all that speaks against a replica, or of which nothing can be known.
func problemsOf(r *warmpathv1.ReplicaStatus) string {
	var all []string
	for _, h := range r.GetHealth() {
		text := h.GetState()
		if ago := time.Duration(h.GetForMs()) * time.Millisecond; ago > 0 {
			text += fmt.Sprintf(" for %v", ago.Truncate(time.Second))
		}
		by := h.GetBy()
		if n := h.GetPrincipals(); n > 0 {
			by = counted(n, "principal")
		}
		all = append(all, fmt.Sprintf("%s (%s): %s", text, by, h.GetWhy()))
	}
	all = append(all, r.GetEvents().GetProblem(), r.GetPollProblem())
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

// printable keeps what a server sends from driving the terminal, or from breaking the table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// inPlace returns what puts a text in the place of the one before, cut to the size of a terminal. A note stands for
// what does not fit below.
func inPlace(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if more := len(lines) - height; more > 0 && height > 0 {
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines: choose one with --deployment", more+1))
	}
	for i, line := range lines {
		if runes := []rune(line); len(runes) > width {
			lines[i] = string(runes[:max(width, 0)])
		}
	}
	return home + strings.Join(lines, clearLine+"\r\n") + clearLine + clearRest
}
