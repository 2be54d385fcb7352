// Package kvaware sends a request where it costs least: the prefill that is left to do
// after what is cached there, and the work under way beside it. It is the policy for prompts.
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
// the load of all policies. A call of this client that waits for its first message shows more: what is prefilled
// elsewhere in as long, where that is more than queued. waiting are the requests that wait even at the least loaded: a
// miss delays them all. The request's own tokens weigh more than the queue's, else
// caches are given up as the fleet fills.
//
// Costs that are at most
//
//	max(4000, drift of the peer load)
//
// above the least count as equal. The first of equals is the one that holds most of the prompt,
// beyond what more than 1/N of the requests begin with; then the first in the rendezvous order of
// the prompt's distinguishing block (package rendezvous). Peer load is the load that other clients
// put on a replica, and its drift is the mean part of it that changes until it is used, learned from
// the reports: all clients act on the same ones, and they are a little old. So clients with the same
// reports do not all go one way, a conversation that was moved stays where its cache is, and a new
// turn finds its replica from any client.
//
// # Homes
//
// If engines do not report their blocks, other clients' prompts are found by agreement: the first
// replica in a prompt's rendezvous order, and the rank that the key fixes, is its home. The home counts
// as holding what it has turned out to hold of such prompts although this client did not send them
// there, and is charged the rest. Nothing is expected before something was measured.
//
// Homes are uneven, and clients that share nothing do not see how busy they are. So the second in the
// order is the home once the first has had 1.25 to 2.5 times its calls under way, in the mean of three
// minutes; the key fixes the factor. If a look-aside server weighs the homes, or replicas are asked for
// their load, this is not needed.
//
// A client is alone if none of its last prompts had more cached than it knew of. Then nothing is
// expected at homes, and among equals the least loaded goes before the order. The same holds if engines
// report what they hold and no peer load drifts: a prompt is found wherever it went, and prefixes
// come to be where there is room.
//
// A request without prompt costs what is under way, and its session is the key of the
// rendezvous order; one without either goes to the one of two at random that has fewer
// reservations.
//
// # Reasons
//
//   - prefix_match: more of the prompt is cached there than most prompts share.
//   - rendezvous: its home, where others are expected to have sent it, or the session's.
//   - rendezvous_spill: another replica, because the home is busy, full or gone.
//   - kv_cost, kv_near_tie: nothing is cached and there is no home; it is the cheapest, or one of several as cheap.
//
// # What a replica holds
//
// What its engine or a look-aside server reports, by tier, in blocks or in superblocks of
// 512 tokens; and what was routed there lately: see package cacheview. Reports are optional.
// Superblocks do not tell of shorter prompts and of what follows the last full one: there own
// routes and homes count as without reports.
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
// it holds. Clients with the same fleet have the same homes for the same key, and when one of N
// replicas comes or goes about 1/N of the keys move. The index has a byte budget and holds hashes only.
// A query, a preview and a shadow leave no trace.
//
// # Source
//
// The cost is that of NVIDIA Dynamo's KV router; the weights, the near ties and the homes are the
// project's own, measured in docs/routing-quality.md. Rendezvous hashing: Thaler and Ravishankar, 1998.
package kvaware
