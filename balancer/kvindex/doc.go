// Package kvindex hashes prompts into blocks and remembers which replica holds which prefix.
//
// # Rule
//
// A prompt is cut into blocks of equal size and every block's hash is chained to the one before it
// ([AppendTokens], [AppendText]), so two prompts share their first n blocks exactly when their n-th
// hashes are equal. [Index] maps these hashes to sets of replicas. [Index.Match] tells how many
// leading blocks each replica holds, contiguously from the first: a replica that lost block 3 matches
// three blocks (0, 1, 2), whatever it holds behind them.
//
// Each replica has a least-recently-used list of its own, as long as its KV cache if [Index.SetCapacity]
// says so, and all replicas share one byte budget. A chain is inserted from its tail to its head, so its
// tail is the first to be evicted: what remains is always a usable prefix.
//
// # Complexity
//
// Blocks that are inserted next to each other share a segment of up to seven: one line of the processor's cache
// with their hashes and who holds which of them. A table leads from a hash to its place there. So Match and Insert
// search the table at most once a segment, not once a block, and what a replica holds of a segment is one word and one
// place in its list.
//
// With n blocks held by h replicas, Match takes O(h·log n) for each depth at which holders end, where the chain came in
// one insert and nothing as young was removed from the replicas, and O(n/7·h) elsewhere. It stops at the first block that
// no replica holds after all those before; a miss is one probe. Insert takes O(n): one search a block that nobody holds,
// and at most one a segment, in O(log h), of what is held; O(1) if the chain was inserted a moment ago. What a further
// replica holds costs as little as to renew it. RemoveReplica and Clear take O(r) and no time per block: readers forget at
// once, memory is swept by later inserts, two blocks for each one inserted. Only when 64 replicas' worth is waiting,
// the oldest is swept on the spot. A block with one holder costs about 20 bytes and each further holder 5, where segments are
// full; a block that is left over alone in its segment, or told alone, up to 100.
//
// # Guarantees
//
//   - An answer may under-estimate, never over-estimate, what Insert, Remove, Clear and RemoveReplica told, as long as
//     Insert is given chains, or [Options].Gaps says that it may not be.
//   - [Stats].Bytes, counted from the arrays really allocated, is at most [Options].MaxBytes after every
//     insert. While an array grows, its old copy waits for the garbage collector uncounted, one small
//     shard at a time.
//   - A replica's own list is exactly least recently used, but for the slack that [Index.Insert] tells of. Between
//     replicas, up to six blocks may stand as young as what their replica inserted next.
//   - No number of replicas makes another replica lose its place in a block's set.
//   - Match does not allocate once its [Matches] has grown to the fleet.
//   - Nothing but hashes is stored, and there is no pointer in the stored arrays for the collector to follow.
//
// # Source
//
// The hashes are those of NVIDIA Dynamo's KV router (XXH3-64, seed 1337). The table's overflow counters,
// which make deletion a matter of clearing a slot, are those of Facebook's F14.
package kvindex
