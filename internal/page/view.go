package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// view is what the live part of the page shows.
type view struct {
	*warmpathv1.GetStatusResponse
	Shown   []deployment
	Servers []server
}

// A server is a row of the servers: the one that shows the page, and those that it shares its view with.
type server struct{ Name, State, Text, Updated string }

// A deployment is one section of the page.
type deployment struct {
	*warmpathv1.DeploymentStatus
	ID        string // of its element
	Tiles     []tile
	Reasons   []reason
	Failed    []reason // picks, by code
	Cached    *Chart   // nil where nothing was reported
	Shadow    *Bars    // nil without a shadow policy
	Elsewhere string   // part of the shadow policy's decisions, in percent
	States    []state
	Fleet     []replica
	Facts     []fact
}

// A tile is one figure with its last minutes.
type tile struct{ Name, Value, Note, Spark string }

// A reason is a row of the decisions.
type reason struct {
	Name, Rate, Spark, Part string
	Count                   uint64
}

// A state is how many replicas are in it.
type state struct {
	Name  string
	Count int
}

type fact struct{ Name, Value string }

// A replica is a row of the fleet.
type replica struct {
	*warmpathv1.ReplicaStatus
	Causes []string // why it is not used, or what is not known of it
	Load   string   // its ongoing requests as a part of its bound, or of the most in the fleet, in percent
	Cached uint64   // tokens, by its events
	Fill   string   // of its cache, in percent; "" = not known
	Lag    string
}

// newView makes the view of a status and of the samples before it. O(replicas).
func newView(s *warmpathv1.GetStatusResponse, h *history) *view {
	v := &view{GetStatusResponse: s, Servers: servers(s)}
	for i, d := range s.GetDeployments() {
		past := append(slices.Clone(h.of(d.GetName())), sampleOf(s, d))
		v.Shown = append(v.Shown, section(d, past[max(len(past)-kept, 0):], fmt.Sprint("d", i)))
	}
	return v
}

// servers are the one asked, and the others of its cluster. Each deployment has its own view of these: the worst
// counts.
func servers(s *warmpathv1.GetStatusResponse) []server {
	own := server{s.GetIncarnation(), stateReady, "shows this page", "up " + duration(s.GetUptimeMs())}
	peers := make(map[string]server)
	for _, d := range s.GetDeployments() {
		if d.GetCluster() == nil {
			continue
		}
		own.Name = d.GetCluster().GetOrigin()
		if !d.GetCluster().GetConnected() {
			own.State, own.Text = stateBad, "shows this page; cut off from the cluster, it goes on with what it has"
		}
		for _, p := range d.GetCluster().GetPeers() {
			x := server{p.GetOrigin(), stateReady, "in sync", duration(p.GetAgeMs()) + " ago"}
			switch {
			case !p.GetSameConfig():
				x.State, x.Text = stateWarn, "has another config of "+d.GetName()
			case !p.GetInSync():
				x.State, x.Text = stateWarn, "catches up"
			case peers[x.Name].State == stateWarn:
				x = peers[x.Name]
			}
			peers[x.Name] = x
		}
	}
	all := []server{own}
	for _, name := range slices.Sorted(maps.Keys(peers)) {
		all = append(all, peers[name])
	}
	return all
}

// Classes of the style sheet.
const stateReady, stateWarn, stateBad = "ready", "full", "ejected"

func section(d *warmpathv1.DeploymentStatus, past []sample, id string) deployment {
	x := deployment{DeploymentStatus: d, ID: id, Fleet: fleet(d), Facts: facts(d)}
	x.decisions(past)
	x.tiles(past)
	if s := d.GetShadow(); s != nil {
		x.Elsewhere = percentage(share(float64(s.GetDiffering()), float64(s.GetDecisions())))
		x.Shadow = &Bars{Title: "Prompt tokens predicted to be cached", Rows: []Bar{
			{Name: d.GetPolicy(), Text: short(float64(s.GetActualMatchedTokens())), Value: float64(s.GetActualMatchedTokens())},
			{Name: s.GetPolicy(), Text: short(float64(s.GetMatchedTokens())), Value: float64(s.GetMatchedTokens()), Color: 1},
		}}
	}
	for i := range x.Fleet {
		name := x.Fleet[i].GetState()
		at := slices.IndexFunc(x.States, func(s state) bool { return s.Name == name })
		if at < 0 {
			at, x.States = len(x.States), append(x.States, state{Name: name})
		}
		x.States[at].Count++
	}
	slices.SortFunc(x.States, func(a, b state) int { return cmp.Compare(b.Count, a.Count) })
	return x
}

// decisions makes the rows of reasons and failures, with sparklines on a common scale.
func (x *deployment) decisions(past []sample) {
	top, all := 0.0, make([][]float64, len(x.GetDecisions()))
	last := past[len(past)-1]
	for i, c := range x.GetDecisions() {
		name := reasonOf(x.DeploymentStatus, c)
		// A reason that the samples lack is new, or stands for several that the principal may not read.
		if _, kept := past[max(len(past)-2, 0)].reasons[name]; kept {
			all[i] = rates(past, func(s *sample) uint64 { return s.reasons[name] })
		}
		top = max(top, most(all[i]))
	}
	for i, c := range x.GetDecisions() {
		x.Reasons = append(x.Reasons, reason{
			Name: reasonOf(x.DeploymentStatus, c), Count: c.GetCount(), Rate: latest(all[i]), Spark: spark(all[i], top),
			Part: percentage(share(float64(c.GetCount()), float64(last.picks))),
		})
	}
	for _, f := range x.GetFailures() {
		x.Failed = append(x.Failed, reason{Name: codes.Code(f.GetCode()).String(), Count: f.GetCount()})
	}
}

func (x *deployment) tiles(past []sample) {
	now := &past[len(past)-1]
	picks, ongoing, queued := rates(past, func(s *sample) uint64 { return s.picks }),
		values(past, func(s *sample) uint64 { return s.ongoing }), values(past, func(s *sample) uint64 { return s.queued })
	bound := uint64(0)
	for _, r := range x.GetReplicas() {
		bound += uint64(r.GetMaxOngoingRequests())
	}
	room := fmt.Sprintf("on %s", count(len(x.GetReplicas()))+plural(len(x.GetReplicas()), " replica"))
	if bound > 0 {
		room = "of " + count(bound)
	}
	x.Tiles = []tile{
		{"Decisions a second", latest(picks), count(now.picks) + " in all", spark(picks, 0)},
		{"Ongoing requests", count(now.ongoing), room, spark(ongoing, 0)},
		{"Waiting in the queue", count(now.queued), "requests", spark(queued, 0)},
	}
	if now.failed > 0 {
		failed := rates(past, func(s *sample) uint64 { return s.failed })
		x.Tiles = append(x.Tiles,
			tile{"Failed picks a second", latest(failed), count(now.failed) + " in all", spark(failed, 0)})
	}
	c := x.GetCachedTokens()
	if c == nil {
		return
	}
	part := func(n uint64) string { return percentage(share(float64(n), float64(c.GetPrompt()))) + " %" }
	predicted, measured := cachedShares(past)
	x.Tiles = append(x.Tiles, tile{"Cached prompt tokens", part(c.GetMeasured()), part(c.GetPredicted()) + " predicted",
		spark(measured.Y, 100)})
	x.Cached = &Chart{Title: "Cached prompt tokens", YUnit: "% of reported prompt tokens", XUnit: "min",
		Lines: []Line{measured, predicted}, MinX: -(kept * sampled).Minutes(), MaxY: 100}
}

// facts are what else the status has, where it is not zero.
func facts(d *warmpathv1.DeploymentStatus) (all []fact) {
	add := func(name string, n uint64, unit string) {
		if n > 0 {
			all = append(all, fact{name, count(n) + unit})
		}
	}
	add("Watching clients", uint64(d.GetWatchers()), "")
	add("Reservations", uint64(d.GetReservations()), "")
	add("Reservations expired", d.GetReservationsExpired(), "")
	add("Registrations expired", d.GetRegistrationsExpired(), "")
	add("Index", d.GetIndex().GetBlocks(), " blocks")
	add("Index evictions", d.GetIndex().GetEvictions(), "")
	add("Superblocks broadcast", d.GetIndex().GetSuperblocks(), "")
	add("Cluster gaps", d.GetCluster().GetGaps(), "")
	for _, f := range []struct {
		name  string
		bytes uint64
	}{
		{"Index memory", d.GetIndex().GetBytes()}, {"Broadcast", d.GetBroadcastBytes()},
		{"Cluster sent", d.GetCluster().GetSentBytes()}, {"Cluster received", d.GetCluster().GetReceivedBytes()},
	} {
		if f.bytes > 0 {
			all = append(all, fact{f.name, short(float64(f.bytes)) + "B"})
		}
	}
	return all
}

// fleet is the replicas: those with a cause first, then in the fleet's order.
func fleet(d *warmpathv1.DeploymentStatus) []replica {
	busiest := uint32(1)
	for _, r := range d.GetReplicas() {
		busiest = max(busiest, r.GetOngoing())
	}
	all := make([]replica, len(d.GetReplicas()))
	for i, r := range d.GetReplicas() {
		bound := cmp.Or(r.GetMaxOngoingRequests(), busiest)
		x := replica{ReplicaStatus: r, Causes: causes(r)}
		x.Load = percentage(share(float64(r.GetOngoing()), float64(bound)))
		if e := r.GetEvents(); e != nil {
			x.Cached = e.GetBlocks() * uint64(e.GetBlockTokens())
			x.Lag = (time.Duration(e.GetLagUs()) * time.Microsecond).Round(10 * time.Microsecond).String()
			if r.GetKvTokens() > 0 {
				x.Fill = percentage(share(float64(x.Cached), float64(r.GetKvTokens())))
			}
		}
		all[i] = x
	}
	slices.SortStableFunc(all, func(a, b replica) int { return cmp.Compare(min(len(b.Causes), 1), min(len(a.Causes), 1)) })
	return all
}

// causes are what speaks against a replica, or what is not known of it.
func causes(r *warmpathv1.ReplicaStatus) (all []string) {
	for _, h := range r.GetHealth() {
		by := h.GetBy()
		if n := h.GetPrincipals(); n > 0 {
			by = count(n) + plural(int(n), " principal")
		}
		text := h.GetState()
		if h.GetForMs() > 0 {
			text += " for " + duration(h.GetForMs())
		}
		all = append(all, fmt.Sprintf("%s (%s): %s", text, by, h.GetWhy()))
	}
	if r.GetStale() {
		all = append(all, "its load is out of date")
	}
	all = append(all, r.GetEvents().GetProblem(), r.GetPollProblem())
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// spark are the points of a sparkline that ends at the right, with top as its height; 0 = the largest value.
func spark(xs []float64, top float64) string {
	top = max(cmp.Or(top, most(xs)), 1e-9)
	var b strings.Builder
	for i, x := range xs {
		fmt.Fprintf(&b, "%s,%s ", percentage(float64(kept-len(xs)+i)/(kept-1)), percentage(1-0.9*share(x, top)-0.05))
	}
	return b.String()
}

func most(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	return slices.Max(xs)
}

// latest writes the last value, a dash where there is none.
func latest(xs []float64) string {
	if len(xs) == 0 {
		return "–"
	}
	return short(xs[len(xs)-1])
}

func plural(n int, thing string) string {
	if n == 1 {
		return thing
	}
	return thing + "s"
}

// duration writes milliseconds with the two largest units.
func duration(ms uint64) string {
	s := ms / 1000
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s/3600%24)
}
