package page

import (
	"sync"
	"time"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	// sampled is how often the status is kept.
	sampled = 2 * time.Second
	// kept is how many samples are: five minutes.
	kept = 150
	// smoothed is over how many samples a rate is a mean.
	smoothed = 5
)

// A sample is what the charts need of a deployment's status.
type sample struct {
	at      float64 // the server's uptime in seconds
	reasons map[string]uint64
	picks   uint64 // the sum of reasons
	failed  uint64
	cached  *warmpathv1.CachedTokens
	ongoing uint64
	queued  uint64
}

// history has the last samples of each deployment. Safe for use by many goroutines.
type history struct {
	mu  sync.Mutex // guards all
	all map[string][]sample
}

// add keeps a sample of each deployment of a status; deployments that it does not have are forgotten.
func (h *history) add(s *warmpathv1.GetStatusResponse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := make(map[string][]sample, len(s.GetDeployments()))
	for _, d := range s.GetDeployments() {
		all := append(h.all[d.GetName()], sampleOf(s, d))
		next[d.GetName()] = all[max(len(all)-kept, 0):]
	}
	h.all = next
}

// of returns the samples of a deployment, the oldest first. They are not changed.
func (h *history) of(deployment string) []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[deployment]
}

func sampleOf(s *warmpathv1.GetStatusResponse, d *warmpathv1.DeploymentStatus) sample {
	x := sample{
		at: float64(s.GetUptimeMs()) / 1000, reasons: make(map[string]uint64, len(d.GetDecisions())),
		cached: d.GetCachedTokens(), queued: uint64(d.GetQueued()),
	}
	for _, c := range d.GetDecisions() {
		x.reasons[reasonOf(d, c)] = c.GetCount()
		x.picks += c.GetCount()
	}
	for _, f := range d.GetFailures() {
		x.failed += f.GetCount()
	}
	for _, r := range d.GetReplicas() {
		x.ongoing += uint64(r.GetOngoing())
	}
	return x
}

// reasonOf names a decision's reason, with its policy where another one is in force.
func reasonOf(d *warmpathv1.DeploymentStatus, c *warmpathv1.DecisionCount) string {
	if c.GetPolicy() == d.GetPolicy() {
		return c.GetReason()
	}
	return c.GetPolicy() + "/" + c.GetReason()
}

// values reads each sample.
func values(all []sample, of func(*sample) uint64) []float64 {
	xs := make([]float64, len(all))
	for i := range all {
		xs[i] = float64(of(&all[i]))
	}
	return xs
}

// rates are what a counter gained a second, each over the samples before it.
func rates(all []sample, of func(*sample) uint64) []float64 {
	xs := make([]float64, 0, len(all))
	for i := 1; i < len(all); i++ {
		from := &all[max(i-smoothed, 0)]
		gained := max(float64(of(&all[i]))-float64(of(from)), 0)
		xs = append(xs, gained/max(all[i].at-from.at, 1e-3))
	}
	return xs
}

// cachedShares are the measured and the predicted share of the prompt tokens, in percent, each over the samples before
// it, at minutes before the last one. Samples in which no request ended with usage have none.
func cachedShares(all []sample) (predicted, measured Line) {
	predicted, measured = Line{Name: "predicted", Dashed: true}, Line{Name: "measured"}
	for i := 1; i < len(all); i++ {
		now, from := &all[i], &all[max(i-smoothed, 0)]
		prompt := float64(now.cached.GetPrompt()) - float64(from.cached.GetPrompt())
		if prompt <= 0 {
			continue
		}
		at := (now.at - all[len(all)-1].at) / 60
		add := func(l *Line, now, before uint64) {
			l.X, l.Y = append(l.X, at), append(l.Y, 100*max(float64(now)-float64(before), 0)/prompt)
		}
		add(&predicted, now.cached.GetPredicted(), from.cached.GetPredicted())
		add(&measured, now.cached.GetMeasured(), from.cached.GetMeasured())
	}
	return predicted, measured
}
