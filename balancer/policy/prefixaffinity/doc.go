// Package prefixaffinity routes a request to a replica that already has the
// beginning of its prompt in the KV cache. Clients that share nothing compute the
// same home for a prompt.
//
// # Rule
//
// The prompt is cut into blocks whose hashes are chained. Within each group of
// replicas to look in ([policy.View.Pool]):
//
//  1. Of the replicas that hold the longest prefix, the first in the rendezvous
//     order, if what it holds counts as a match and it is within the load bound;
//     then those that hold less.
//  2. Else the first in the rendezvous order that is within the bound; the least
//     loaded always is.
//
// The rendezvous order is rendezvous hashing of the distinguishing block: the first
// block that is in at most 1/N of the requests lately seen here, or in at most
// three. In the first N/2 requests of a client it also lies behind what the prompt
// has in common with another one that went on differently, and so belongs to another
// conversation; until 3N/2, with two others. What follows the last full block is
// hashed as a block of its own, so a short question behind a long system prompt
// distinguishes too. A request without prompt goes by its session; one without
// either goes to the one of two at random that has fewer reservations.
//
// A replica is passed over when its load is above that of the least loaded by more
// than
//
//	max(4,000 tokens, drift of the peer load) + (3 + waiting) × expected
//
// expected are the prompt's own tokens that the replica holds. For the first in the rendezvous
// order, where no replica holds any, it is the part of them that such replicas have turned out to
// hold all the same, because other clients sent them there; what is expected there is not charged
// as load. waiting are the requests that wait even at the least loaded: a miss delays them all. So
// a prompt waits for its cache as long as that pays, and a new prompt is placed nearly by load
// alone. Peer load is the load that other clients put on a replica, and its drift is the mean part
// of it that changes until it is used, learned from the reports: all clients act on the same ones,
// so smaller differences must not count. A replica that takes a spill becomes a holder, and holders
// are taken in the rendezvous order: a hot prompt fans out along its order as its load grows, and
// comes back when the load is gone.
//
// A replica holds what was routed there (predicted). Where an engine or a look-aside
// server reports the cache of a replica ([policy.CacheObserver]), in blocks or in
// superblocks of 512 tokens, it holds what is reported, and of the predicted only the
// recent: see package cacheview.
//
// # What counts as a match
//
// What every replica has decides nothing. Shared are the blocks before the
// distinguishing one; at most three requests never make a block shared. Shared
// blocks are taken off both sides:
//
//	rate = (matched - shared) / (prompt - shared)
//
// so a system prompt alone has rate 0 however long it is, while the turns of a
// conversation are compared by what is their own: with 2,000 tokens of system
// prompt, a second turn of 100 new behind 180 old tokens has rate 0.64, not 0.08.
// The last block of a prompt is never shared: a holder of the whole prompt matches.
// The matched tokens of the decision include the shared blocks, which are cached
// there too.
//
// A prefix in more than 1/N of the requests is more than one replica should bear,
// and clients that do not see each other's load would all stay with its first
// holder. So it does not decide: the requests go by what distinguishes them, and the
// prefix comes to be in every cache. There are never more than N such prefixes. A
// prefix in more than 1/2N has two homes: the first two of its order. Each request
// takes one of them by the hash of what distinguishes it further; for it the two
// change places in the order.
//
// # Complexity
//
// Preparing costs O(blocks + replicas): a hash per 16 tokens, a probe of the index
// per block until no replica holds it, a hash per replica. Choosing looks at up to 32
// holders and the first 16 of the order, at up to 64 replicas for the least loaded,
// and beyond them at every replica of the group once. A prompt of 8,192 tokens costs
// two allocations.
//
// # Guarantees
//
// Clients with the same fleet have the same order for the same key, in any language
// that has XXH3. When one of N replicas comes or goes, about 1/N of the keys move and
// no others. The index has a byte budget, popularity a fixed table; neither grows
// with the prompts ever seen, and both hold hashes only.
//
// # Source
//
// Ray Serve LLM's PrefixCacheAffinityRouter, whose rule as a whole is on_miss:
// smallest, with block_tokens: 1 for its lengths (in four bytes; Ray counts code
// points). Rendezvous hashing: Thaler and Ravishankar, 1998. Bounded load: Mirrokni,
// Thorup and Zadimoghaddam, 2018, here per candidate and against the mean.
package prefixaffinity
