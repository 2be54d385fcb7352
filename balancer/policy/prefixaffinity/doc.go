// Package prefixaffinity routes a request to a replica that already has its
// prompt's beginning in the KV cache, and agrees with every other client on who
// that is without talking to them.
//
// # Rule
//
// The prompt is cut into blocks whose hashes are chained. Within each group of
// replicas to look in ([routing.View.Pool]):
//
//  1. Of the replicas known to hold the longest prefix, the first in the rendezvous
//     order, if what they hold counts as a match and they are within the load bound;
//     then those that hold less.
//  2. Else the first in the rendezvous order that is within the bound; the least loaded
//     always is.
//
// The rendezvous order is rendezvous hashing of one block of the prompt: the first
// that distinguishes it, that is, which is in at most 1/N of the requests lately
// seen here, or in at most three. In a client's first N/2 requests it lies also behind
// what the prompt has in common with another one that went on differently, and so is
// another conversation; until 3N/2 with two others. What follows the last full block is
// hashed as a block of its own, so a short question behind a long system prompt distinguishes
// too. A request without prompt goes by its session, and one without either to
// the one with fewer bookings of two at random.
//
// A replica is passed over when its load is above that of the least loaded by more than
//
//	max(load_slack_tokens, foreign_slack × mean foreign load) + reuse_weight × expected
//
// where expected are the prompt's own tokens that it is known to hold; for the first in
// the rendezvous order, when nobody is known to, that part of them which such replicas have
// turned out to hold all the same, sent there by other clients. So a prompt waits for
// its cache as long as that is worth it and no longer, one that is new is next to free
// in its choice, and how much clients gain from agreeing is measured, not assumed. The
// foreign load is what others are told to have booked: news that all clients act on
// alike, so that small differences in it must not count. Whoever
// takes the spill becomes a holder, and holders are taken in the rendezvous order: a hot prompt
// fans out along its order in step with its load, and comes back when the load is gone.
//
// A replica holds what was routed there. Where an engine or a look-aside server tells
// what a replica caches ([Policy.CacheChanged]), in blocks or in superblocks of 512
// tokens, it holds what is told, and of what was routed there only the recent: see
// package cacheview.
//
// # What counts as a match
//
// What everybody has decides nothing. Shared are the blocks before the
// distinguishing one, and those that more than shared_fraction of the replicas
// hold which may serve the request; at most three requests, or three holders,
// never make a block shared. Shared blocks are taken off both sides:
//
//	rate = (matched - shared) / (prompt - shared)
//
// so that a system prompt alone has rate 0 however long it is, while the turns of
// a conversation are compared by what is their own: with 2,000 tokens of system
// prompt, a second turn of 100 new behind 180 old tokens has rate 0.64, not 0.08.
// The last block of a prompt is never shared: who holds the whole prompt matches.
// What the decision reports as matched includes the shared blocks, which are
// cached there too.
//
// A prefix in more than 1/N of the requests is more than one replica should bear,
// and clients that do not see each other's load would all stay with its first
// holder. So it binds nobody: the requests go by what distinguishes them, and the
// prefix comes to be in every cache. There are never more than N such prefixes side
// by side. A prefix in more than 1/2N has two homes: the first two of its order, of
// which each request takes one by the hash of what distinguishes it further; for it the
// two change places in the order.
//
// # Complexity
//
// Preparing costs O(blocks + replicas): a hash per 16 tokens, a probe of the index
// per block until nobody holds it, a hash per replica. Choosing looks at up to 32
// holders and the first eight of the order, at up to 64 replicas for the least loaded,
// and beyond them at every replica of the group once. A prompt of 8,192 tokens costs two
// allocations.
//
// # Guarantees
//
// Clients with the same fleet have the same order for the same key, in any
// language that has XXH3. When one of N replicas comes or goes, about 1/N of the
// keys move and no others. The index has a byte budget, popularity a fixed table;
// neither grows with the prompts ever seen, and both hold hashes only.
//
// # Source
//
// Ray Serve LLM's PrefixCacheAffinityRouter, whose rule as a whole is on_miss:
// smallest, with block_bytes: 1 for its exact lengths (in bytes; Ray counts code
// points). Rendezvous hashing: Thaler and Ravishankar, 1998. Bounded load: Mirrokni,
// Thorup and Zadimoghaddam, 2018, here per candidate and against the mean.
package prefixaffinity
