// Package channel ties together what belongs to one gRPC channel: the
// interceptors, which see messages and the life of a call, and the balancer's
// picker, which alone sees connections.
//
// The rule. The interceptors put a [Call] into the context of every attempt; the
// picker finds it there. The channel's [Handle] tells the interceptors which
// Router the channel's balancer hosts, and keeps that Router while gRPC closes
// the balancer of an idle channel, so that what was learned survives. While
// several balancers of one channel are alive (xDS clusters, a switch of policy)
// the interceptors have no Router: the picker alone decides.
//
// Guarantees. A Handle owns memory only: nothing in it runs. A booking that an
// interceptor acquired is either claimed by one picker or released by the
// interceptor.
package channel
