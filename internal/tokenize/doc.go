// Package tokenize gives prompts of text their token ids, so that a policy sees the
// blocks that an engine caches and reports, and a prompt's true length.
//
//	import _ "github.com/warmpath/warmpath/tokenizers"
//
//	client.WithConfig(`{"tokenizer": {"from": "/models/llama-3/tokenizer.json"}}`)
//
// The rule. Before a policy prepares, the Router asks the Tokenizer of its channel,
// in the goroutine of the call and under no lock. Token ids that are in a request
// are used as they are. Chat turns become text by the model's chat template, or are
// sent to an engine that has it.
//
// Sources, one of which the config names: a file tokenizer.json, one of tiktoken's
// encodings, an engine's HTTP endpoint. The first two and chat templates are there only
// if the program imports package tokenizers, so that others do not link what they need.
//
// Guarantees. A prompt costs no more than prepare_timeout. Where its tokens cannot be had,
// it is routed as text by blocks of bytes, logged once and counted. Equal prompts at
// the same time are encoded once; what was encoded is remembered in 64 MiB of
// memory, by hashes, never as text. Of a text that a tokenizer can cut in segments
// ([Segmenter]) only the segments that were not seen before are encoded.
package tokenize
