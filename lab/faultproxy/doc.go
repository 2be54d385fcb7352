// Package faultproxy stands between a gRPC client and a server on loopback and breaks what passes: late, slow, held,
// reset, half-open, or turned away with GOAWAY.
//
// # Rule
//
// A [Proxy] listens at an address that stays, whatever becomes of the server behind it, and connects every
// client to the server of the moment. What the client sends passes as bytes, what the server sends frame by
// frame, so that GOAWAY can be put between two. What is to be broken is in a [Fault], which holds until the
// next, or happens at once: [Proxy.Drop], [Proxy.Reset], [Proxy.HalfOpen], [Proxy.GoAway]. A server that cannot
// be reached is refused as loopback does: the client's connection is reset.
//
// # Guarantees
//
// Without a fault nothing is changed, reordered or lost. No frame of the proxy's own falls into a block of headers.
// What waits inside is bounded: per connection [queueLength] frames of the server and one piece of the client, so a
// slow reader is felt by the other side. After Close no goroutine and no connection is left.
//
// # Complexity
//
// Three goroutines per connection, one copy per frame. It understands plaintext HTTP/2 with prior knowledge, which is
// what gRPC speaks without TLS.
//
// Source: RFC 9113 (HTTP/2), RFC 9293 (TCP).
package faultproxy
