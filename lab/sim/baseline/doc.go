// Package baseline has the routing rules of other projects, and the textbook's, to be compared with in the
// simulator. They are written from what those projects publish, not from their code: they are no part of the
// product and claim nothing about how those products perform in production.
//
// # Rules
//
//   - random: any replica, evenly
//   - least_requests: fewest requests under way. A random one of equals, here and below
//   - least_tokens: least load as warmpath counts it (prompt tokens reserved and not yet prefilled, plus the request
//     cost per request), blind to caches: every token of a prompt counts
//   - ray_prefix: Ray Serve LLM's PrefixCacheAffinityRouter: the product's prefix_cache_affinity. A token of a trace
//     is a character. All replicas together hold 32 million of them; Ray's never forget by default. Requests are counted
//     by itself, not asked of the replicas
//   - smg_cache_aware_2025: SMG's cache_aware up to August 2026, still that of the SGLang and vLLM gateways: if the
//     requests of busiest and idlest differ by more than 64 and by more than 1.5 times, the idlest; else the replica
//     that was sent the longest prefix, if that is more than 0.3 of the prompt, of several the one used last; else
//     the idlest, of several the one that was sent the fewest requests so far
//   - smg_cache_aware: the same since August 2026: no look at the fleet as a whole; of several that hold the prefix
//     the idlest; one whose requests are more than 1.5 times the mean and 64 above it is passed over for the idlest,
//     which then holds the prefix too. Its thresholds on KV usage are off by default, and here
//   - llmd_default: the default scorers of llm-d's endpoint picker: 2 × queue (waiting requests, scaled between the
//     least and the most), 2 × (1 − KV use), 3 × matched ÷ prompt blocks; the highest sum. What engines report is
//     looked at every 50 ms; prefixes are its own guess, in blocks of 64 tokens, an LRU per replica as long as
//     the engine has blocks of its own (the published unit mismatch). Here no tail of a prompt is a block
//   - dynamo: the KV router of NVIDIA Dynamo: least of S × (active prefill + uncached prompt) + decode blocks, in
//     blocks, S = 1, with the engines' exact KV contents from their events, as soon as each pass has ended. dynamo_s16
//     is the same with S = 16, a tuned weight that its own sweeps found best
//   - lmetric_queued: LMetric's product: least of (uncached prompt + queued prefill tokens) × (requests under way + 1),
//     with the engines' exact KV contents
//
// Which requests are split over a replica that prefills and one that decodes ([Split]):
//
//   - aggregated: none, and no replica has a role; always: all
//   - llmd: llm-d's prefix-based decider: those of which at least 16 tokens are not cached where they would be served
//     whole. uncached_512 and uncached_2048 are the same with other thresholds
//   - dynamo: Dynamo's conditional rule: those of which at least 2,048 tokens, and 0.7 of the prompt, are not cached
//     there
//
// All of them choose both replicas as the product does.
//
// Every client is a proxy by itself. That is what several of SMG, without its mesh, and of llm-d are; but the
// routers of Ray Serve share one tree, in an actor, and those of Dynamo can send each other what they have
// under way: with many clients ray_prefix and dynamo have less to go by here than there.
//
// Where clients share load, random and ray_prefix make nothing of it. The others that count requests or
// tokens see the shared figures (decode blocks are not part of a load report); llm-d's sees no reservations at
// all, but asks the engines.
//
// # Complexity
//
// O(replicas) a request, and O(blocks) for those that look at prompts.
//
// # Source
//
// Ray: python/ray/llm/_internal/serve/routing_policies/prefix_aware. SMG: smg-project/smg, pull requests 2117 and
// 2161. llm-d: llm-d/llm-d-router, loader/defaults.go. Dynamo: lib/kv-router/src/scheduling/selector.
// LMetric: arXiv 2603.15202
package baseline
