package client

import "github.com/warmpath/warmpath/internal/call"

// Errors of calls, found with [errors.Is] in what a stub returns; that is a gRPC status as
// well, with a message that describes what happened.
var (
	// ErrRetryBudget: an attempt failed in a way that another replica might have made good, and
	// the channel has made as many retries as retry_ratio and retry_floor allow. The code is
	// that of the attempt, as a rule UNAVAILABLE.
	ErrRetryBudget = call.ErrRetryBudget
	// ErrQuarantined: the connections of two replicas broke while they had this prompt and
	// before they answered it, so no third one gets it, for quarantine_ttl. The code is INTERNAL.
	ErrQuarantined = call.ErrQuarantined
)
