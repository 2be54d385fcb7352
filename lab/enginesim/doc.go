// Package enginesim is a model of an LLM engine that ranks routing policies as real engines do: a batching
// scheduler with one pool of KV blocks, in steps whose duration depends on what is in them. It computes
// nothing; it computes when each token would come.
//
// # Rule
//
// An engine works in passes. A pass with P prompt tokens computed in chunks of n after a context of m, and D
// sequences decoding at context lengths ctx, takes
//
//	T = c0 + c1·P + c2·Σ n·(m + n/2) + c3·Σ ctx + c4·D + o
//
// with the coefficients of a [Preset] (the mocker preset has polynomials of its own). What is in the pass
// follows vLLM's scheduler:
//
//   - a token budget and a number of sequences per pass; running sequences first, in the order in which they
//     were admitted, then waiting ones, first come first served, stopping at the first that does not fit;
//     prefill is cut in chunks by what is left of the budget
//   - one pool of blocks for running and cached; the blocks of running sequences are pinned; when no block is
//     left the last running sequence is preempted, goes to the head of the queue and is computed again (what
//     is still cached of it counts as a hit), and no sequence is admitted in that pass
//   - freed blocks go to the end of the LRU list tail first, so that the heads of prompts live longest; a free
//     block keeps its contents until it is reused; blocks of output are cached like those of prompts
//   - a sequence of n tokens hits full blocks only, and at most n-1 tokens. A block is found by those that are
//     scheduled after the one that computes it, even in the same pass, as in vLLM; a [Listener] receives stored
//     and removed blocks after the pass, in the order in which it happened
//   - a request with Hold, a prefill leg above all, keeps its blocks after the end until Release; one with Received
//     takes the blocks for what comes when it is admitted, waits until the KV has come, and computes the rest: a
//     decode leg the last token of the prompt only
//   - every sequence whose prefill is complete gives one token at the end of each pass that it is in; it ends
//     with the token that completes its output
//
// [Engine] is the model in virtual time: no goroutine, no clock, no lock. Prompts are lists of block hashes.
// [Driver] runs an Engine on the wall clock, slower or faster, for many goroutines. Package grpcserver puts
// gRPC services on it.
//
// # Complexity
//
// A pass costs a few ns per sequence in it and about 100 ns per block allocated; admitting a request, and
// trying in vain, costs that for each block hit. Nothing in a pass costs time per prompt token. Memory is about
// 60 bytes per block of the pool, and nothing grows with the number of requests ever seen.
//
// # Guarantees
//
// The same calls in the same order give the same events. A pass never exceeds its budget, nor the pool its
// size; a pinned block is never evicted; every accepted request ends, by itself or by Abort, which frees what
// it holds at once. What cannot ever fit is refused by Submit.
//
// # Sources
//
// Scheduler: vLLM v1 (Scheduler.schedule, KVCacheManager.allocate_slots, FreeKVCacheBlockQueue). Coefficients:
// BLIS's published defaults for c0, c1, c4 and the cache sizes; c2 = 4·layers·d_model ÷ 400 TFLOP/s and
// c3 = bytes of KV per token ÷ 2.7 TB/s are estimates from the hardware; o = 3 ms of CPU. The mocker's
// polynomials are those of Dynamo's mock engine. A claim about policies counts only where all presets agree.
package enginesim
