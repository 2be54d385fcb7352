// Package kvpublish publishes a simulated engine's KV events as real engines do: over ZeroMQ with a replay buffer, and
// as batches for gRPC.
//
// # Rule
//
// A pass of the engine that changed its cache is one batch with the next sequence number, published after the pass. A
// [Log] keeps the last of them; every subscriber reads it at its own pace, and one that falls behind it misses what is
// gone. The engine never waits. Block hashes on the wire are not those of package kvindex: nothing may rely on them.
//
// # Complexity
//
// A batch costs the engine a copy of its tokens. Encoding is done for each subscriber.
//
// # Sources
//
// vLLM's kv_events.py as far as subscribers see it: topic, eight bytes of sequence number big-endian from 0 for each
// process, msgpack; a ROUTER socket that answers a number with all batches from there on and an end marker.
package kvpublish
