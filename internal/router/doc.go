// Package router is the core of warmpath: it picks one replica for one
// request and reserves the load that the request puts there.
//
// The rule. A [Router] hosts one [Policy] over one fleet. For every request
// the policy first prepares what needs no lock (hash the prompt, search the
// index), then chooses; choosing and reservation are one step under the Router's
// lock, so that of two requests that arrive together the second sees the load
// of the first. When every replica that a request may use is full, the request
// waits in the Router's queue.
//
// Load is one figure for all policies: uncached prompt tokens reserved and not
// yet prefilled, plus a fixed number of tokens per active request, divided by
// the replica's rate. For a policy that looks at load the rate is learned from how
// fast the replica answers, and the load of others counts as far as it is reported,
// by a broadcast or by the replica itself.
//
// Health. Where [Options] say so, replicas that fail, hang or answer far later than the
// others are left alone for a while, tried with one request at a time, and brought
// back slowly, like those that are new. A draining replica keeps its sessions for a
// while. Both are preferences among those that are connected.
//
// Complexity. Picking costs what the policy's Choose costs plus O(1). A change
// of membership or of connectivity costs O(replicas), and each request that waits
// chooses again. The fleet's health is looked at every 100 ms at most, in
// O(replicas). A release whose replica a request waits for looks through the queue for the first of them.
//
// Guarantees. A replica that is not connected is never picked. A replica never
// has more reservations than its max_ongoing_requests. A reservation is released once,
// however often Release is called, and ongoing never goes below zero. No request in
// the queue is overtaken by another for the same replica, and none waits
// while a replica that it waits for has room. No goroutine is started but that of
// [Options] AfterFunc, and only while a request waits; no clock or randomness is used
// but what Options give, save for the deadline of a Prepare that calls out. Replicas
// that are equally fast have exactly equal rates.
//
// The package is free of gRPC, HTTP, protobuf and the network: the gRPC
// picker, the look-aside server and the simulator are three hosts of one Router.
package router
