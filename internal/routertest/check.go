package routertest

import (
	"slices"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Check fails the test if a policy may not answer a request with this decision.
func Check(t testing.TB, q *policy.Request, v policy.View, d policy.Decision) {
	t.Helper()
	if d.Replica == nil {
		checkWait(t, q, v, d)
		return
	}
	r := v.ByID(d.Replica.ID)
	switch {
	case r == nil:
		t.Errorf("picked %s, which is not in the fleet", d.Replica.ID)
	case !r.Connected():
		t.Errorf("picked %s, which is not connected", r.ID)
	case r.Full():
		t.Errorf("picked %s, which is full", r.ID)
	case r.Draining:
		t.Errorf("picked %s, which is draining", r.ID)
	case slices.Contains(q.Exclude, r.ID):
		t.Errorf("picked %s, which the request excludes", r.ID)
	case !v.Available(q, r):
		t.Errorf("picked %s, which does not serve the model %q", r.ID, q.Model)
	}
	if d.Reason == "" {
		t.Errorf("picked %s and gives no reason", d.Replica.ID)
	}
	if d.Place < -1 || d.MatchedTokens < 0 || d.MatchedTokens > q.PromptTokens {
		t.Errorf("picked %s with place %d and %d matched tokens of %d",
			d.Replica.ID, d.Place, d.MatchedTokens, q.PromptTokens)
	}
}

func checkWait(t testing.TB, q *policy.Request, v policy.View, d policy.Decision) {
	t.Helper()
	if len(d.WaitFor) == 0 {
		for _, r := range v.Connected() {
			if v.Available(q, r) {
				t.Errorf("waits for any replica while %s is available", r.ID)
			}
		}
		return
	}
	for _, w := range d.WaitFor {
		r := v.ByID(w.ID)
		if r == nil || !r.Connected() || !r.Full() || !v.Allowed(q, r) {
			t.Errorf("waits for %s, which is not a full one that the request may use", w.ID)
		}
	}
}
