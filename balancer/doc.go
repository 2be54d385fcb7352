// Package balancer is the gRPC load-balancing policy "warmpath": import it (the
// client package does) and name it in a service config.
//
// The rule. Every endpoint of the resolver gets a pick_first child of its own,
// so one connection; the picker asks the [router.Router] which replica the call
// goes to and reserves it there until the call ends. The policy's algorithm, its
// queue and its load live in the Router; this package only reports what is
// connected and hands its answers to gRPC.
//
// With the interceptors of package client the request key comes from the
// message. Without them a call is routed by its metadata: session affinity works,
// policies that need the prompt degrade, which is logged once.
//
// Up to [EagerConnections] connections are opened at once, one to each replica or as many as connections_per_replica.
// In a larger fleet they are opened when first picked, so that every client can reach the replica that all agree on
// without holding a connection to each.
//
// Complexity. A pick costs what the policy costs plus two look-ups in the
// context. A change of connectivity costs O(replicas).
//
// Guarantees. Every change of connectivity publishes a picker at once. What was
// learned survives new pickers, re-resolution and, with package client, the
// channel's idleness. Works under any resolver; endpoints that carry no
// attributes of ours are known by their address.
//
// Source: gRFC A61 (endpointsharding, pick_first under health listeners), A62
// (pick_first).
package balancer
