package routing_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/balancer/routing"
)

// shortestName prefers the available replica with the shortest id, and keeps
// requests of the session "vip" on the one called "gold".
type shortestName struct{}

// Uses tells the host that no prompt is needed: Prepare is not called.
func (shortestName) Uses() routing.Uses { return routing.UsesSession }

func (shortestName) Prepare(context.Context, *routing.Request, *routing.View) error { return nil }

func (shortestName) Choose(q *routing.Request, v *routing.View) routing.Decision {
	if gold := v.ByID("gold"); gold != nil && q.Session == "vip" {
		if !v.Available(q, gold) {
			return routing.Wait(gold) // for this one, and no other
		}
		return routing.To(gold, "vip")
	}
	var best *routing.Replica
	for _, r := range v.Connected() {
		if v.Available(q, r) && (best == nil || len(r.ID) < len(best.ID)) {
			best = r
		}
	}
	if best == nil {
		return routing.Wait() // for whoever has room first
	}
	return routing.To(best, "shortest_name")
}

// A host tells the Router who is there and who is connected, picks, and releases
// when the call ends.
func Example() {
	router, err := routing.NewRouter(routing.Options{Policy: shortestName{}, MaxOngoing: 1})
	if err != nil {
		panic(err)
	}
	defer router.Close()
	router.SetFleet([]routing.Member{
		{Attributes: routing.Attributes{ID: "gold"}},
		{Attributes: routing.Attributes{ID: "silver"}},
		{Attributes: routing.Attributes{ID: "tin"}},
	})
	router.SetConnected("gold", true)
	router.SetConnected("silver", true)

	ctx := context.Background()
	var vip, other, third routing.Booking
	for _, call := range []struct {
		session string
		booking *routing.Booking
	}{{"vip", &vip}, {"", &other}, {"", &third}} {
		err := router.Pick(ctx, &routing.Request{Session: call.session}, call.booking)
		if errors.Is(err, routing.ErrFull) {
			fmt.Println("full; tin is not connected")
			continue
		}
		fmt.Println(call.booking.Decision.Replica.ID, call.booking.Decision.Reason)
	}

	vip.Release()
	// Acquire would have waited for this.
	if err := router.Acquire(ctx, &routing.Request{}, &third); err == nil {
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
