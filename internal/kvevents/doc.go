// Package kvevents follows what engines report of their KV caches, as changes of chained hashes. Its gRPC streams need
// nothing else; ZeroMQ comes with package balancer/kvevents, which registers it here.
//
// # Rule
//
// An engine names blocks by hashes of its own. They stay opaque: every stored block is hashed anew from its token ids
// behind its parent, as package kvindex does, and the engine's hash only serves to find parents and what is removed.
//
// Batches carry a sequence number. Over ZeroMQ a gap is filled from what the engine still has; if that does not reach
// back far enough, the replica is cleared and what there is is taken. A number that goes back, or a message that is not
// the one that had this number, is an engine that was restarted: cleared. A connection that comes back is checked the
// same way, and clears nothing by itself.
//
// Over gRPC every data-parallel rank has sequence numbers of its own, and nothing is replayed: a rank with a gap is
// cleared, and a new subscription, with number 0, brings what the server has: live events, all events, or a snapshot.
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
// SMG's servers before smg-grpc-servicer 0.14 send neither cache salt nor the adapter's name: salted prompts are hashed
// as others are, blocks of adapters are left out. A server that sends live events only, as SMG's in Python, never tells
// of blocks stored before the subscription: they and their children are left out until they are stored again. An engine
// that was restarted while no connection stood, and published as many batches as before, cannot be told from the one
// before. That a gRPC stream lost its last message shows in the next one only. Of a token that comes in a pair with the
// next one, as SGLang writes with some ways of speculation, the first counts: such a block is found by a prompt that
// differs right behind it.
//
// # Sources
//
// The events of vLLM, SGLang, SMG's servicers and OpenEngine, as far as they feed a prefix index: blocks of groups with
// full attention, without images or other content beside the tokens.
package kvevents
