package channel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/balancer/routing"
)

// Explain adds to routing.ErrNoSuchReplica what keeps the request from the replicas of the fleet. Other
// errors it returns as they are.
func Explain(err error, q *routing.Request, v *routing.View) error {
	if err != routing.ErrNoSuchReplica {
		return err
	}
	if q.Pin != "" {
		return fmt.Errorf("%w: it is pinned to %q, which %s", err, q.Pin, unpinnable(q.Pin, v))
	}
	return fmt.Errorf("%w: of %d, %s", err, len(v.Replicas()), misfits(q, v))
}

func unpinnable(id string, v *routing.View) string {
	switch r := v.ByID(id); {
	case r == nil:
		return "is not in the fleet"
	case r.Draining:
		return "drains"
	}
	return "it excludes"
}

// misfits counts the replicas by what is in the way.
func misfits(q *routing.Request, v *routing.View) string {
	var excluded, draining, other int
	for _, r := range v.Replicas() {
		switch {
		case slices.Contains(q.Exclude, r.ID):
			excluded++
		case r.Draining:
			draining++
		default:
			other++
		}
	}
	var why []string
	add := func(n int, what string) {
		if n > 0 {
			why = append(why, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(excluded, "excluded by the call")
	add(draining, "draining")
	add(other, fmt.Sprintf("without the model %q", q.Model))
	return strings.Join(why, ", ")
}
