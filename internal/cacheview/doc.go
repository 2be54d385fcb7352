// Package cacheview keeps what every replica is believed to have in its KV cache: from
// one's own routes, and from what the engines or a look-aside server tell.
//
// # Rule
//
// A replica that nobody tells of holds what was routed there, in a list that is as
// long as its KV cache if that is known. A replica that is told of
// ([Index.CacheChanged]) holds what is told, by tier, and besides the blocks of
// requests that are under way or ended less than [Grace] ago: news is older than the
// last picks, and what was routed before may have been evicted since.
//
// Told is in blocks, in superblocks, or in both. A superblock is looked up by the
// chained hash of the block that ends it; the depth of a replica is the deepest that
// any source knows. Which tokens a block has must fit: blocks of another size than
// those prompts are cut in, and superblocks that they do not divide, are refused and
// counted.
//
// # Complexity
//
// [Index.Match] is one or two look-ups of package kvindex and O(holders). Telling and
// routing cost what inserting costs there.
//
// # Guarantees
//
// One byte budget, and a sixteenth more for superblocks from the first on that is
// told. A replica that leaves holds nothing at once. Hashes only.
//
// # Source
//
// The rule of the predictions is the project's own; docs/routing-quality.md measures it.
package cacheview
