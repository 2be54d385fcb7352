// Package faultproxy stands between a gRPC client and a server on loopback and breaks what passes: late, slow, lost,
// reset, half-open, or turned away by HTTP/2's own means.
//
// # Rule
//
// A [Proxy] listens at an address that stays, whatever becomes of the server behind it, and connects every
// client to the server of the moment. Frames of HTTP/2 are passed on one by one as they are, and looked at
// just enough to know which streams are open. What is to be broken is in a [Fault], which holds until the
// next, or happens at once: [Proxy.Drop], [Proxy.Reset], [Proxy.HalfOpen], [Proxy.GoAway].
// A server that cannot be reached is refused as loopback does: the client's connection
// is reset.
//
// # Guarantees
//
// Without a fault nothing is changed, reordered or lost; header compression stays in step since every frame
// that one side sent reaches the other. No frame of the proxy's own falls into a block of headers. What waits
// inside is bounded: per connection [queueLength] frames of the server and one of the client, so a slow
// reader is felt by the other side. After Close no goroutine and no connection is left.
//
// # Complexity
//
// Three goroutines per connection, one copy per frame. It understands plaintext HTTP/2 with prior knowledge, which is
// what gRPC speaks without TLS.
//
// Source: RFC 9113 (HTTP/2), RFC 9293 (TCP).
package faultproxy
