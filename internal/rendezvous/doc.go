// Package rendezvous is what clients that do not talk to each other agree on: which
// block of a prompt tells it from others, and in which order the replicas stand
// for it.
//
// # Rule
//
// [Blocks] cuts a prompt into blocks whose hashes are chained, and hashes what
// follows the last full block as a block of its own, so that a short question
// behind a long system prompt distinguishes too. [Popularity] finds the first block
// that is in at most 1/N of the requests lately seen here, or in at most [Few] of
// them: the key. [Scorer] puts the replicas in the order of the key, by rendezvous
// hashing. That order is the rendezvous order, for as many clients as there are. A key in
// more than 1/2N of the requests is too much for one replica that has others beside it;
// Popularity tells this too, and where the prompts of such a key part. [Reuse] is what
// agreeing turns out to gain.
//
// # Complexity
//
// A hash per block and per replica. Finding the key looks at O(log blocks) counters.
//
// # Guarantees
//
// Clients with the same fleet have the same order for the same key, in any
// language that has XXH3. When one of N replicas comes or goes, about 1/N of the
// keys move and no others. Popularity is a fixed table; nothing here grows with the
// prompts ever seen, and nothing but hashes is kept.
//
// # Source
//
// Rendezvous hashing: Thaler and Ravishankar, 1998. Count-min sketch: Cormode and
// Muthukrishnan, 2005, with the conservative update of Estan and Varghese, 2002.
package rendezvous
