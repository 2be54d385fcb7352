// Package loadpoll polls the replicas of a fleet, and reads the load of engines that do not register themselves: by
// gRPC (GetLoads, as in SMG's servicers), or from their Prometheus page.
//
// # Rule
//
// Every replica is polled once an interval, each at its own offset, and less and less often while it does not answer.
// An engine's requests running and waiting are a load; the size of its KV cache is a capacity. A replica with several
// data-parallel ranks has the sum of their requests, and the smallest of their caches.
//
// # Complexity
//
// A goroutine for each replica; at most 64 polls of replicas that answered last are under way at once, and as many of
// others, so that replicas that hang do not hold up the rest. Only the lines of a page with a known metric are parsed.
//
// # Guarantees
//
// An answer is bounded in bytes and time, redirects are not followed, and environment variables set no proxy. No proto
// name of an engine's is registered: fields are read by number.
//
// Source: the metrics that vLLM, SGLang and TensorRT-LLM publish, for the names on the pages; the engines' published
// protos for the numbers of the fields.
package loadpoll
