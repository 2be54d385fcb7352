package router_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// shortestName prefers the available replica with the shortest id, and keeps
// requests of the session "vip" on the one called "gold".
func shortestName(q *policy.Request, v policy.View) policy.Decision {
	if gold := v.ByID("gold"); gold != nil && q.Session == "vip" {
		if !v.Available(q, gold) {
			return policy.Wait(gold) // for this one, and no other
		}
		return policy.To(gold, "vip")
	}
	var best *policy.Replica
	for _, r := range v.Connected() {
		if v.Available(q, r) && (best == nil || len(r.ID) < len(best.ID)) {
			best = r
		}
	}
	if best == nil {
		return policy.Wait() // for the first replica with room
	}
	return policy.To(best, "shortest_name")
}

// A host reports members and connections to the Router, reserves, and releases when the call ends.
func Example() {
	rt, err := router.NewRouter(router.Options{
		Policy: policy.Policy{Uses: policy.UsesSession, Choose: shortestName}, MaxOngoing: 1,
	})
	if err != nil {
		panic(err)
	}
	defer rt.Close()
	rt.Fleet.Set([]router.Member{
		{Attributes: policy.Attributes{ID: "gold"}},
		{Attributes: policy.Attributes{ID: "silver"}},
		{Attributes: policy.Attributes{ID: "tin"}},
	})
	rt.Fleet.SetConnected("gold", true)
	rt.Fleet.SetConnected("silver", true)

	ctx := context.Background()
	var vip, other, third router.Reservation
	for _, call := range []struct {
		session     string
		reservation *router.Reservation
	}{{"vip", &vip}, {"", &other}, {"", &third}} {
		err := rt.Reserve(ctx, &policy.Request{Session: call.session}, call.reservation, router.How{NoWait: true})
		if errors.Is(err, router.ErrFull) {
			fmt.Println("full; tin is not connected")
			continue
		}
		fmt.Println(call.reservation.Decision.Replica.ID, call.reservation.Decision.Reason)
	}

	vip.Release()
	// Reserve would have waited, without NoWait, for this.
	if err := rt.Reserve(ctx, &policy.Request{}, &third, router.How{}); err == nil {
		fmt.Println(third.Decision.Replica.ID, third.Decision.Reason)
	}
	other.Release()
	third.Release()

	// Output:
	// gold vip
	// silver shortest_name
	// full; tin is not connected
	// gold shortest_name
}
