// Package workload makes the requests that the simulator, the load generator and the demo replay: it reads
// traces and generates the workloads of warmpath's engine model.
//
// # Rule
//
// A prompt is a list of segments, and token i of a segment is a function of the segment's seed and i
// ([Token]). Equal seeds give equal tokens: a trace's block id, a system prompt or an earlier answer is a
// seed, so what is shared in the trace is shared in real token ids over real RPCs too. A prompt costs a few
// words of memory until its tokens or hashes are needed.
//
// Every token is four letters from a to p, read as a little-endian uint32. Text counts four bytes as one
// token, so the same prompt sent as text or as token ids has the same tokens, hence the same block hashes.
//
// An output has tokens of its own: token i of the answer to the request with id R is
// Token(OutputSeed(R), i). The simulated engine uses the same function with the request id it receives, so a
// generator has every engine's answer and puts it in the next turn's prompt; a client may as well
// copy the token ids or the text it received. A trace's blocks never contain outputs.
//
// Block hashes are those of package kvindex.
//
// # Complexity
//
// Reading is one line at a time. Hashing costs about 2 ns per token. Generators hold the whole workload in
// memory, about 200 bytes and one segment of 24 bytes per turn and request.
//
// # Guarantees
//
// The same arguments give the same requests on every machine. A malformed line is an error that names the
// line and the field; it never panics and nothing is guessed. Requests are open loop: a turn arrives when
// its time has come, whether or not the one before was answered.
//
// # Sources
//
// Formats: Mooncake FAST'25 traces (github.com/kvcache-ai/Mooncake) and LMCache's agent traces
// (github.com/LMCache/lmcache-agent-trace).
package workload
