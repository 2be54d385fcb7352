// Package cacheview keeps what every replica has in its KV cache: predicted from the
// routes of this client, and reported by the engines or a look-aside server.
//
// # Rule
//
// A replica without reports holds what was routed there, in a list that is as long as
// its KV cache if that is known. A replica with reports ([Index.CacheChanged]) holds
// what is reported, by tier, and beside that the blocks of requests that are under way:
// reports are older than the last picks, and what was routed before may have been evicted
// since.
//
// Reports come in blocks, in superblocks, or in both. A superblock is looked up by the
// chained hash of the block that ends it; the depth of a replica is the deepest of all
// sources. The size must fit: blocks of another size than prompts are cut in, and
// superblocks that these do not divide, are refused and counted.
//
// # Complexity
//
// [Index.Match] is one look-up of package kvindex, two once superblocks are reported, and
// O(holders). Reports and routes cost what inserting costs there.
//
// # Guarantees
//
// One byte budget. A replica that leaves holds nothing at once. Hashes only.
//
// # Source
//
// The rule of the predictions is the project's own; docs/routing-quality.md measures it.
package cacheview
