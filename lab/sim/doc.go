// Package sim answers "what would each policy do with my traffic": it runs the product's own Routers, policies
// and index over simulated engines in virtual time, for one client or many.
//
// # Rule
//
// K Routers, each what one process of an application would have, stand before N engines of package enginesim.
// A request arrives at its time at a client drawn at random (seeded, so every policy gets the same draws), or
// at that of its session. The client's Router picks and reserves as it does in production; the engine gets the
// prompt at that moment. The first token drops the prompt's share of the reservation, the last one releases it
// and reports to the policy how the call ended, with the engine's own figures of cached tokens. There is no network:
// what lies between client and engine takes no time.
//
// What clients learn of each other is set by [Share]:
//
//   - none: nothing
//   - load: every client reports its reservations on each replica once per interval, in the last tenth of it,
//     one after the other; at its end the server adds up the reports and every client gets the sum with the
//     number of its report that is in it. A client's load of a replica is that sum less its own report, damped
//     ([github.com/warmpath/warmpath/internal/router/load.Damping]), plus its own reservations of now. Its view of others is up to 1.1 intervals old.
//   - several servers: what the clients of another server reported is one interval older, and so is what it has of caches
//   - broadcast: load, and with it what the caches gained and lost. The server gets every engine's events as they
//     happen and keeps superblocks of 512 tokens
//   - poll: no server; a client asks replicas before each request, as load_poll has it
//     ([github.com/warmpath/warmpath/internal/loadprobe]), and they answer with the sum of all clients' reservations
//   - poll_count: the same, but they answer with counts of requests, as engines' GetLoads does
//
// A policy that needs the engines' own events (kv_aware) has them, exactly and at once, at every client; with
// broadcast it has what the server sends instead. (A client gets the changes of a prompt's blocks just before
// it looks them up, not of the others, which it would not look up: that is as exact, and cheap with many
// clients.) Other policies have only what the server sends.
//
// Engines need not be alike: several kinds alternate. Where the clients' config has max_ongoing_requests,
// requests without room wait in their client's queue, as in production, until the caller's patience ends.
//
// Some engines may only prefill for others. A request that its client's Router splits has two legs: the first ends with
// its first token, which is not used, and holds its KV until that has moved to the engine of the second, which computes
// the last token of the prompt again. Its TTFT is that of the second leg.
//
// Policies are those of package policy and those of package baseline, which are written from the published rules
// of other projects.
//
// # Complexity
//
// One goroutine. An hour of the Mooncake conversation trace (12,031 requests, 145 million prompt tokens) on 16
// engines takes 2 to 15 s a policy, most of it in the prefix index; memory is that of K indexes and N caches. Exact
// events cost N times the blocks of a prompt a request at most; a broadcast costs K times the superblocks.
//
// # Guarantees
//
// The same arguments give the same figures, to the last bit. Every request ends exactly once, and at the end
// no Router holds a reservation, else Run fails.
//
// # Source
//
// docs/simulator.md has what the model gets right, what wrong, and what it leaves out.
package sim
