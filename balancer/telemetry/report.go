package telemetry

import (
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
)

// A Report is the decision of one call as the application reads it afterwards.
type Report struct {
	Replica       string // id of the replica that served the call; "" when none was picked
	Address       string
	Policy        string
	Reason        routing.Reason
	Rule          routing.Reason // the policy's own reason where Reason is retry, hedge or queued
	MatchedTokens int            // prompt tokens believed to be cached there
	PromptTokens  int
	Place         int     // in the agreed order or on the ring; -1 = none
	Load          float64 // of the replica when it was picked, in tokens
	Queued        time.Duration
	Attempts      int
	Usage         routing.Usage // as the replica reported it
}
