// Package part leads from the types of package policy to the Router's part in them. It is unexported there, so that no
// other module can change a reservation: package policy hands over at init how it is reached.
//
// It hands over the places of the fields, not functions. A pick asks for a part about twenty times, and a function in a
// variable is not inlined: with functions BenchmarkPickRelease took 15 to 19 % longer.
package part

import (
	"unsafe"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// OfRequest returns the Router's part of a request.
func OfRequest(q *policy.Request) *state.Request {
	return (*state.Request)(unsafe.Add(unsafe.Pointer(q), state.Access.Request))
}

// OfReplica returns the Router's part of a replica.
func OfReplica(r *policy.Replica) *state.Replica {
	return *(**state.Replica)(unsafe.Add(unsafe.Pointer(r), state.Access.Replica))
}

// OfDecision returns the Router's part of a decision.
func OfDecision(d *policy.Decision) *state.Decision {
	return (*state.Decision)(unsafe.Add(unsafe.Pointer(d), state.Access.Decision))
}

// NewReplica returns a replica of a fleet: its attributes, its place in View.Replicas, and the host's handle.
var NewReplica = state.Access.NewReplica.(func(a policy.Attributes, index int, host any, s *state.Replica) *policy.Replica)
