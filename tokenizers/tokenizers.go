// Package tokenizers makes vocabularies and chat templates readable for the tokenizer of a channel's config. It is
// imported for its effect:
//
//	import _ "github.com/warmpath/warmpath/tokenizers"
//
// It registers the config fields
//
//   - file: tokenizer.json files of Hugging Face, byte-pair encodings;
//   - tiktoken: OpenAI's encodings o200k_base, cl100k_base, p50k_base, p50k_edit and r50k_base;
//   - chat_template: Jinja templates, or the tokenizer_config.json that holds one, for chats without tools.
//
// Complexity. The program is some 13 MB larger. A vocabulary is read when a channel is configured with it: a fraction
// of a second and 50 to 100 MB of memory, once in a process while it is in use.
package tokenizers

import (
	_ "github.com/warmpath/warmpath/tokenizers/internal/huggingface" // file
	_ "github.com/warmpath/warmpath/tokenizers/internal/jinja"       // chat_template
	_ "github.com/warmpath/warmpath/tokenizers/internal/tiktoken"    // tiktoken
)
