// Package kvaware sends a request where it costs least: the prefill that is left to do
// after what is cached there, and the work under way beside it.
//
// # Rule
//
// In each group of replicas to look in ([policy.View.Pool]) every replica, or each of
// its data-parallel ranks, has a cost in tokens:
//
//	3 · (prompt - credit) / rate + queued / rate + κ · active / rate - waiting · credit
//
// credit is what its cache saves: leading tokens it holds, 0.75 of them in host memory,
// 0.25 on disk. What more than 1/N of the requests begin with is worth as much where it is
// not cached yet: it is more than one replica should bear, and clients that do not see each
// other's load would all go to its first holders. queued are uncached prompt tokens
// reserved there and not yet prefilled, κ is the channel's request_cost_tokens, both as in
// the load of all policies. waiting are the requests that wait even at the least loaded: a
// miss delays them all. The request's own tokens weigh more than the queue's, else
// caches are given up as the fleet fills.
//
// Costs that are at most
//
//	max(4000, drift of the peer load)
//
// above the least count as equal, and among equals the one that holds most of the prompt is
// picked, beyond what more than 1/N of the requests begin with; of these the first in the
// rendezvous order of the prompt's distinguishing block (package rendezvous), where a
// popular prefix has two homes. Peer load is the load that other clients put on a replica, and
// its drift is the mean part of it that changes until it is used, learned from the reports: all
// clients act on the same ones, and they are a little old. So clients with the same reports
// do not all go one way, a conversation that was moved stays where its cache is, and a new
// turn finds its replica from any client. Where engines report what they hold and no peer
// load drifts, since none is known or it was asked for, the least loaded goes before the order:
// clients find what others sent elsewhere, and prefixes come to be where there is room.
//
// A request without prompt costs what is under way, and its session is the key of the
// rendezvous order; one without either goes to the one of two at random that has fewer
// reservations.
//
// # What a replica holds
//
// What its engine or a look-aside server reports, by tier, in blocks or in superblocks of
// 512 tokens; and what was routed there lately: see package cacheview. Reports are optional.
// Token prompts are cut in the block that the engine of the model reports, so its blocks
// are found; other sizes are refused and counted. Picks that were made since a request was
// prepared count too, so a burst spreads as if it came one by one.
//
// # Complexity
//
// Preparing costs a hash per block, a search of the index, and a hash per replica;
// choosing O(replicas). Of more than 64 replicas, or ranks, it looks at 32 that hold
// most, the first 16 in the rendezvous order and 64 drawn at random, among whose loads the
// least is nearly the least of all. A prompt of 8,192 tokens costs two allocations on
// up to 16 replicas, three on more.
//
// # Guarantees
//
// No load is ever cut off: a holder is left when another replica is cheaper, however much
// it holds. The index has a byte budget and holds hashes only.
//
// # Source
//
// The cost is that of NVIDIA Dynamo's KV router; the weights and the near ties are the
// project's own, measured in docs/routing-quality.md.
package kvaware
