// Package prefixaffinity is Ray Serve LLM's PrefixCacheAffinityRouter: a request goes to the replica that was sent the
// longest prefix of its prompt.
//
// # Rule
//
// It is Ray's, of version 2.60, decision by decision. Within each group of replicas to look in ([policy.View.Pool]),
// which are Ray's locality tiers:
//
//  1. If the requests under way differ by more than imbalanced_threshold between two of the replicas, the one with fewer
//     of two drawn at random is taken (power of two choices).
//  2. Else the replicas that were sent the longest prefix of the prompt are preferred, if that prefix is at least
//     match_rate_threshold of the prompt. Any replica matches the empty prefix.
//  3. Else the replicas that hold the fewest characters are preferred.
//  4. Of the preferred replicas the one with the fewest requests under way is taken. If all of them are full, the request
//     waits for one of them, whatever room others have.
//
// A character is a code point of a text, a token of a token prompt, or a block of a prompt that arrives hashed, which
// counts as many as it stands for.
//
// A replica holds the prompts that were sent there. Once it holds more than eviction_threshold_chars, the prompts that
// were used least lately are forgotten until it holds eviction_target_chars. Both are Ray's fields with Ray's values.
// Forgotten characters are subtracted.
//
// # What differs
//
//   - Forgetting is always on, and done as a prompt is added; Ray looks every ten seconds, if do_eviction is set. Together
//     the replicas hold 32 million characters at most, each an equal part of that.
//   - A prompt that failed before its first message is taken back.
//   - A request without a prompt goes to the one of two at random with fewer requests under way. So does one with an empty
//     prompt, which Ray sends to the replica that holds the fewest characters.
//   - Each client has a tree of its own. Ray's routers share one.
//
// # Complexity
//
// Preparing costs a multiplication for each character, and a search of the tree; choosing O(replicas). A character held
// takes 8 bytes, once for all replicas that hold it.
//
// # Guarantees
//
// The tree has hashes only, chained and seeded by model, adapter and salt.
//
// # Source
//
// Ray Serve LLM, PrefixCacheAffinityRouter and PrefixTree.
package prefixaffinity
