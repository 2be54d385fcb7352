package state

// Access leads to what this package defines in the types of package policy, where it is unexported: the places of the
// fields, and the function that makes a Replica. Package policy sets it at init, and package part alone reads it: it
// knows the types, which this package cannot import.
var Access struct {
	Request, Replica, Decision uintptr
	NewReplica                 any
}
