// Package server is the look-aside server: membership, load and decisions for any number of clients, in one process
// and in memory.
//
// # Rule
//
// A deployment is one fleet and one [router.Router] over it. Callers ask it for a replica (ChooseReplica), or watch
// it and decide for themselves (WatchReplicas). The load of a replica is one figure for both: what watching clients
// report, and what the server has booked for those who ask. Once an interval it is added up and told to everybody;
// of what a client is told, it takes off its own reports up to the one that the server says it has counted.
//
// What is booked for a caller ends with its lease, if not before. A pick that nobody reports on counts for a fixed
// time, so a caller that only ever asks does not send everything to one replica.
//
// Members come from the config, from a gRPC target that is resolved anew every so often, and from replicas that
// register themselves with a lease. A source that fails leaves the members it told last.
//
// # Complexity
//
// A pick costs what the policy costs and O(replicas) for its fallbacks. A report costs what it names. Once an interval
// O(replicas) for the sum; each watcher is sent what has changed, which is put together once for all who were sent the
// interval before.
//
// # Guarantees
//
// Everything that callers can make grow is bounded by the [Config]. A config that is refused leaves the one before in
// force, and one that is taken keeps the state of every deployment whose policy stays as it is. No prompt is kept or
// logged: what comes as text or tokens is hashed in the call.
//
// The package imports neither client nor resolver nor balancer: it shares with them the core, the policies and the
// contract in proto/warmpath/v1.
package server
