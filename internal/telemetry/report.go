package telemetry

import (
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
)

// NoReport is the Report of a call that no replica was picked for.
var NoReport = Report{Place: -1, Usage: routing.NoUsage}

// A Report is the decision of one call as the application reads it afterwards.
type Report struct {
	Replica       string // id of the replica of the last attempt that was sent; "" when none was picked
	Address       string
	Policy        string
	Reason        routing.Reason
	Rule          routing.Reason // the policy's own reason where Reason is another's: see [routing.Decision]
	MatchedTokens int            // prompt tokens predicted to be cached there
	PromptTokens  int
	Place         int           // in the rendezvous order or on the ring; -1 = none
	Load          float64       // of the replica when it was picked, in tokens
	Queued        time.Duration // how long the attempt waited in the queue
	Attempts      int           // made, this one included
	Usage         routing.Usage // as the replica reported it
}
