// Package grpcserver serves a simulated engine over gRPC as real engines are served, for tests, the demo and
// the load generator.
//
// # Rule
//
// One server carries two dialects of the same engine: vllm.grpc.engine.VllmEngine (SMG's servicer, a
// streaming Generate) and vllm.Inference (vLLM's Rust frontend, Generate and GenerateStream), besides
// grpc.health.v1 and reflection. Prompts come as token ids or as text, four bytes to a token. The answer to
// request id R is Token(OutputSeed(R), i) of package workload; a request without an id gets one, and the
// client takes the token ids as they come. A call that its client ends is aborted in the engine.
//
// # Figures
//
// When engine time runs faster than the clock, a client cannot measure. The trailer of every call that reached the
// engine reports in engine time, in milliseconds with three decimals: x-engine-ttft-ms (absent if there was no
// token) and x-engine-e2e-ms, and in tokens: x-engine-computed-tokens and x-engine-cached-tokens.
//
// # Guarantees
//
// A full server (Config.MaxOngoing) refuses with RESOURCE_EXHAUSTED and the trailer warmpath-rejection-bin;
// nothing was computed then. Every accepted call ends. Stop lets calls end, Kill cuts connections at once;
// after either no goroutine is left.
//
// # Sources
//
// The fields are those of SMG's vllm_engine.proto and of vLLM's Rust server, as far as the engine reads them.
package grpcserver
