// Package rendezvous computes what clients that share nothing must agree on: which
// block of a prompt distinguishes it, and the order of the replicas for that block.
//
// # Rule
//
// [Blocks] cuts a prompt into blocks whose hashes are chained, and hashes what
// follows the last full block as a block of its own, so that a short question
// behind a long system prompt distinguishes too. [Popularity] finds the first block
// that is in at most 1/N of the requests lately seen here, or in at most [Few] of
// them: the key. [Scorer] puts the replicas in the order of the key, by rendezvous
// hashing: the rendezvous order, the same for any number of clients. A key in more
// than 1/2N of the requests is too much for one replica that has others beside it;
// Popularity finds these too, and where the prompts of such a key part. [Reuse]
// measures what the common order gains.
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
