// Package lookaside is the client's side of a look-aside server: the watch that tells a channel of its replicas, its
// policy, the load of others and what the replicas have cached, and that tells the server what the channel has booked.
//
// The rule. A [Watch] belongs to the resolver of one channel and lives as long. It follows one of the servers at a time
// (WatchReplicas), beginning with the one that rendezvous hashing of the deployment's name puts first; when that is
// lost it goes on to the next at once, and after a round of all of them waits, longer each time, with jitter. As soon
// as a better server can be reached again it goes back there, so that clients share one view. The balancer finds the
// Watch in the resolver's state and attaches its Router, which is then told of load and caches and asked for bookings.
//
// What is known stays until something better is known. Nothing that a server does, or fails to do, takes a replica away
// to which there is a connection while none that it names has one. Beyond that, a server of which nothing was heard before,
// since it was restarted or is another one, is given [Timing.Grace] to learn of everybody: those whom it does not name
// yet stay. Load of others is believed as long as anything is heard of the server, and as it was with the server before until
// the next one has counted a report of ours and says that it knows anybody's; then it fades to nothing. What
// is known of caches stays until the next server tells all of it anew.
//
// Load. A server's sum has our own bookings in it, as of the last of our reports that it had counted. The ledger
// remembers every report until it is counted, and takes off exactly what was: what others have booked is exact as of
// the update, and our own bookings come from our own books. What remains is tempered by [routing.Hearsay].
//
// Complexity. A report is linear in the replicas, an update in what it carries and, where load is told, in the
// replicas. One connection, two goroutines and, while a server is followed, two more.
//
// Source: proto/warmpath/v1.
package lookaside
