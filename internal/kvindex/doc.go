// Package kvindex hashes prompts into blocks and remembers which replica holds which prefix.
//
// # Rule
//
// A prompt is cut into blocks of equal size and every block's hash is chained to the one before it
// ([AppendTokens], [AppendText]), so two prompts share their first n blocks exactly when their n-th
// hashes are equal. [Index] maps these hashes to sets of replicas. [Index.Match] returns how many
// leading blocks each replica holds, contiguously from the first: a replica that lost block 3 matches
// three blocks (0, 1, 2), whatever it holds behind them.
//
// Blocks that are inserted next to each other share a segment of up to seven: one line of the processor's
// cache with their hashes and their holders. A table leads from a hash to its place there. What a replica
// holds of a segment is one word, and one node in the replica's list of segments, the most recently used
// first. The list is as long as the replica's KV cache if [Index.SetCapacity] sets it, and all replicas share
// one byte budget. A chain enters the list from its head to its tail, and the last segment, from its last
// block on, is evicted first: what remains is a usable prefix.
//
// # Complexity
//
// With n blocks held by h replicas, Match takes O(n/7·h), and stops at the first block that no replica holds after all
// those before; a miss is one probe. Insert takes O(n/7·log h) for what is known, and one probe for each new block.
// Drop takes O(1): readers forget at once, memory is swept by later inserts, two blocks for each one
// inserted. A block with one holder costs about 24 bytes and each further holder 5, where segments are
// full; a block that is alone in its segment, up to 100.
//
// # Guarantees
//
//   - An answer may under-estimate, never over-estimate, what Insert, Remove and Drop recorded.
//   - [Stats].Bytes, counted from the arrays really allocated, is at most the budget after every
//     insert. While an array grows, its old copy waits for the garbage collector uncounted, one small
//     shard at a time.
//   - A replica's own list is least recently used by segments, but for the slack of [Index.Insert].
//   - No number of replicas makes another replica lose its place in a block's set.
//   - Match does not allocate once its [Matches] has grown to the fleet.
//   - Nothing but hashes is stored.
//
// # Source
//
// The hashes are those of NVIDIA Dynamo's KV router (XXH3-64, seed 1337). The table is ordered linear probing (Amble
// and Knuth, 1974).
package kvindex
