package channel

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/lookaside"
)

// Central is mode central of a channel: its look-aside server is asked where each call goes. Read only.
type Central struct {
	Desk *lookaside.Desk
	// Closed fails calls for which the server does not decide, with UNAVAILABLE; else the local policy decides.
	Closed bool
}

// errUnasked is what a picker is told that has a call for which only the server may decide. The attempt loop, which can
// ask, tries again.
var errUnasked = errors.New("only the look-aside server may decide (central.on_failure: fail_closed), and it was not asked for this attempt")

// central returns how the server is asked for the call, nil if it is not to be.
func (c *Call) central(b *Binding) *Central {
	if b.Central == nil || c.Request.Pin != "" || !b.Router.Decides(&c.Request) {
		return nil
	}
	return b.Central
}

// ask has the look-aside server decide, and books what it says. It returns false where the local policy is to decide.
// The error is a gRPC status.
func (c *Call) ask(b *Binding) (booked bool, err error) {
	m := c.central(b)
	if m == nil || len(b.Router.View().Connected()) == 0 {
		return false, nil // only gRPC can help
	}
	b.Router.Prepare(c, &c.Request)
	answered, err := c.askOnce(b, m)
	if answered != "" && m.Closed {
		err = c.askForOthers(b, m, answered, err)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, routing.ErrClosed):
		return false, nil // gRPC meets the next Router
	}
	if ended := c.Err(); ended != nil {
		return false, status.FromContextError(ended).Err()
	}
	if m.Closed {
		return false, status.Errorf(codes.Unavailable, "warmpath: the look-aside server does not decide, and central.on_failure is fail_closed: %v", err)
	}
	return false, nil
}

// askOnce books what the server says. The replica is the one that it named, also where that cannot be booked.
func (c *Call) askOnce(b *Binding, m *Central) (replica string, err error) {
	a, err := m.Desk.Ask(c, &c.Request, b.Router.PromptHashes(&c.Request))
	if err != nil {
		return "", err
	}
	if err := b.Router.Honour(&c.Request, a.Replica, a.Decision, &c.booking); err != nil {
		a.Reservation.Released(nil)
		return a.Replica, err
	}
	c.reservation = a.Reservation
	return a.Replica, nil
}

const (
	// maxAsked bounds the questions for one attempt, maxNamed the replicas that they name.
	maxAsked = 4
	maxNamed = 1000
)

// askForOthers asks again where only the server may decide and it named a replica that cannot be used from here, which err
// says why: without that one, and without those that are not connected, of which the server cannot know.
func (c *Call) askForOthers(b *Binding, m *Central, replica string, err error) error {
	own := c.Request.Exclude
	defer func() { c.Request.Exclude = own }()
	for asked := 1; err != nil && replica != "" && asked < maxAsked && !errors.Is(err, routing.ErrClosed); asked++ {
		all := append(slices.Clone(c.Request.Exclude), replica)
		if asked == 1 {
			for _, r := range b.Router.View().Replicas() {
				if !r.Connected() && len(all) < maxNamed-maxAsked {
					all = append(all, r.ID)
				}
			}
		}
		c.Request.Exclude = all
		replica, err = c.askOnce(b, m)
	}
	return err
}

// decidedHere notes that the local policy decided where the server was to. Called when a booking was made, by whoever
// holds it.
func (c *Call) decidedHere(b *Binding) {
	if c.central(b) == nil {
		return
	}
	d := &c.booking.Decision
	if d.Rule == "" {
		d.Rule = d.Reason
	}
	d.Reason = routing.ReasonFallbackLocal
}

// giveBack releases a booking that was not sent, and the server's reservation of it. Called with mu held or by the only
// one who knows the booking.
func (c *Call) giveBack() {
	c.booking.Withdraw(&c.Request)
	c.reservation.Released(nil)
	c.reservation = nil
}

// timedAsk is ask with the time it took told to the telemetry.
func (c *Call) timedAsk(b *Binding) (bool, error) {
	if !c.handle.Telemetry.Timed(c) {
		return c.ask(b)
	}
	start := time.Now()
	booked, err := c.ask(b)
	if booked {
		c.handle.Telemetry.Picked(c, b.Policy, time.Since(start)-c.booking.Decision.Queued)
	}
	return booked, err
}
