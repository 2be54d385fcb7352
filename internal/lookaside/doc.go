// Package lookaside is the client's side of a look-aside server. The watch gives a channel its replicas, its policy,
// the peer load and what the replicas have cached, and reports to the server what the channel has reserved.
//
// The rule. A [Watch] belongs to the resolver of one channel and lives as long. It follows one of the servers at a time
// (WatchReplicas), beginning with the one that rendezvous hashing of the deployment's name puts first. When that is
// lost it goes on to the next at once, and after a round of all of them waits, longer each time, with jitter. As soon
// as a better server can be reached again it goes back there, so that clients share one view. The balancer finds the
// Watch in the resolver's state and attaches its Router: that gets peer load and caches, and its reservations are
// reported.
//
// What is known stays until something better is known. Nothing that a server does, or fails to do, takes a connected
// replica away while none that it names is connected. Beyond that, a server that is new or was restarted has
// [Timing.Grace] to learn all replicas: those that it does not name yet stay. Peer load is in force as long as the
// server sends anything. After a change of server it stays as it was until the next one has counted a report of this
// client and has the load of one replica at least; without that it fades to nothing. Caches stay as they are until the
// next server's snapshot.
//
// Load. A server's sum contains this client's own load, as of the last report that the server had counted. The ledger
// remembers every report until it is counted, and subtracts exactly that: the load of peers is exact as of the update,
// and the own load comes from the Routers. What remains is damped by
// [github.com/warmpath/warmpath/internal/router/load.Damping].
//
// Complexity. A report is linear in the replicas, an update in what it carries and, where it has load, in the
// replicas. One connection, two goroutines and, while a server is followed, two more.
//
// Source: proto/warmpath/v1.
package lookaside
