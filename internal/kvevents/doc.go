// Package kvevents follows what engines report of their KV caches, as changes of chained hashes. Its gRPC streams need
// nothing else; ZeroMQ comes with package balancer/kvevents, which registers it here.
//
// # Rule
//
// An engine names blocks by hashes of its own. They stay opaque: every stored block is hashed anew from its token ids
// behind its parent, as package kvindex does, and the engine's hash only serves to find parents and what is removed.
//
// Batches carry a sequence number. A gap is filled from what the engine still has; where that does not reach back far
// enough, the replica is cleared and what there is is taken. A number that goes back, or a message that is not the one
// that had this number, is an engine that was restarted: cleared. A connection that comes back is checked the same way,
// and clears nothing by itself.
//
// What cannot be read is counted by kind and ends nothing. Blocks whose parent is unknown are left out and counted.
//
// # Complexity
//
// A message costs one hash of its tokens and a look-up in a map per block. When the context ends, its work ends behind
// the event under way. Memory per data-parallel rank is bounded by [Options].MaxBytes, about 80 bytes a block.
//
// # Guarantees
//
// The changes never add up to more than what the engine has reported, and equal it while nothing was refused, forgotten
// or lost. Nothing of a prompt but hashes is kept.
//
// # Limits
//
// SMG's gRPC events have neither cache salt nor the adapter's name: salted prompts are hashed as others are, or left
// out where the events are of groups; blocks of adapters are left out. Use ZeroMQ where tenants are kept apart by
// salt. That a gRPC stream lost its last message shows in the next one only. Of a token that comes in a pair with the
// next one, as SGLang writes with some ways of speculation, the first counts: such a block is found by a prompt that
// differs right behind it.
//
// # Sources
//
// The events of vLLM, SGLang, SMG's servicers and OpenEngine, as far as they feed a prefix index: blocks of groups with
// full attention, without images or other content beside the tokens.
package kvevents
