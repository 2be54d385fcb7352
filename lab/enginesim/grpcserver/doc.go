// Package grpcserver serves a simulated engine over gRPC as real engines are served, for tests, the demo and
// the load generator.
//
// # Rule
//
// One server carries three dialects of the same engine: vllm.grpc.engine.VllmEngine (SMG's servicer, a streaming
// Generate), vllm.Inference (vLLM's Rust frontend, Generate and GenerateStream) and
// sglang.grpc.scheduler.SglangScheduler (SMG's servicer), besides grpc.health.v1 and reflection. Prompts come as
// token ids or as text, four bytes to a token. The answer to request id R is Token(OutputSeed(R), i) of package
// workload, and goes on where the prompt ends with a part of it; a request without an id gets one, and the client
// takes the token ids as they come. A call that its client ends is aborted in the engine.
//
// # Disaggregation
//
// With Config.Disaggregation it is a prefill engine, a decode engine, or both. The legs of a request meet by NIXL's or
// Mooncake's parameters, or in SGLang's bootstrap rooms; package kvtransfer is the way between the engines.
// Parameters are checked as real engines do, and must come back byte by byte. A leg that has wrong ones ends with
// INVALID_ARGUMENT, one that cannot have its KV with INTERNAL, as with vLLM's kv_load_failure_policy "fail". One that
// gets the KV of other tokens gives a wrong output.
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
