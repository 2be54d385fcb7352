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
// With n blocks and r replicas, Match takes O(n·(1 + r/64)) and stops at the first block that no live
// replica holds; a miss is one probe. Insert takes O(n), or O(1) if the chain was inserted a moment ago:
// 100 to 200 ns a block nobody holds, mostly the processor's wait for memory, and 5 ns a block held already,
// since a chain is found in the replica's list as it was inserted. A chat that grows by 32 blocks a turn costs
// 30 to 40 ns a block of its whole prompt (go test -bench 'Insert|Growing').
// RemoveReplica and Clear take O(r) and no time per block: readers forget at once, memory is swept by
// later inserts, two blocks for each one inserted. Only when 64 replicas' worth is waiting, the oldest is
// swept on the spot. A block costs about 35 bytes, its first holder 24 more and each further one 32, replicas
// above the 64th up to 8 more.
//
// # Guarantees
//
//   - An answer may under-estimate, never over-estimate, what Insert, Remove, Clear and RemoveReplica told.
//   - [Stats].Bytes, counted from the arrays really allocated, is at most [Options].MaxBytes after every
//     insert. While an array grows, its old copy waits for the garbage collector uncounted, one small
//     shard at a time.
//   - No number of replicas makes another replica lose its place in a block's set.
//   - Match does not allocate once its [Matches] has grown to the fleet.
//   - Nothing but hashes is stored, and there is no pointer in the stored arrays for the collector to follow.
//
// # Source
//
// The hashes are those of NVIDIA Dynamo's KV router (XXH3-64, seed 1337). The table's overflow counters,
// which make deletion a matter of clearing a slot, are those of Facebook's F14.
package kvindex
