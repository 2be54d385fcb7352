// Package proxy is a transparent gRPC proxy: it passes the calls of clients in any language on to replicas, which
// warmpath's own client picks.
//
// # Rule
//
// A call is passed on without its stubs: messages stay bytes, and the dialect of its method reads the request key from
// them. A call whose client half-closes after one message, as unary and server-streaming clients do at once, is to the
// client of this package a server-streaming call: routed by its message, retried until the first answer, and watched
// by outlier detection. Any other call opens with its first message, is routed by that, and is not retried.
//
// # Guarantees
//
// Metadata, status with details, deadline, cancellation and compression are those of both ends. A response header is
// passed on at once while the client may still send, which may wait for it, and with the first message otherwise: until
// then another replica may answer. A request is not kept beyond the first answer.
//
// # Source
//
// github.com/mwitkow/grpc-proxy has the same shape. It opens a replica's stream before the first message, where there
// is no key yet and all calls look alike, and its last version is of 2018.
package proxy
