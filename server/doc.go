// Package server is the look-aside server: membership, load and decisions for any number of clients, in one process
// and in memory.
//
// # Rule
//
// A deployment is one fleet and one [router.Router] over it. A client asks it for a replica (ChooseReplica), or
// watches it and picks by itself (WatchReplicas). The load of a replica is one figure for both: the sum of the reports
// of watching clients and of the picks made here. It is added up and sent once an interval; from it a client subtracts
// its own reports, up to the one that the server has counted.
//
// A pick made here ends with its lease at the latest. One of mode count adds to the load for a fixed time, so that a
// client that never reports does not send everything to one replica.
//
// Members come from the config, from a gRPC target that is resolved again at an interval, and from replicas that
// register themselves with a lease. A source that fails leaves its last members.
//
// # Complexity
//
// A pick costs the policy's time and O(replicas) for its fallbacks. A report costs its own size. Once an interval the
// sum costs O(replicas); each watcher is sent the changes, which are put together once for all watchers that are up to
// date.
//
// # Guarantees
//
// Everything that clients can make grow is bounded by the [Config]. A config that is refused leaves the one before in
// force. One that is accepted keeps the state of every deployment whose policy is unchanged; another policy begins with
// the fleet, the load and the ejections of the one before. No prompt is kept or logged: text and tokens are hashed in the
// call.
//
// The package imports neither client nor resolver nor balancer: it shares with them the core, the policies and the
// contract in proto/warmpath/v1.
package server
