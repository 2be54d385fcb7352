// Package huggingface reads tokenizer.json files, for the field file of a channel's
// tokenizer.
//
// The rule. Byte-pair encodings are read, over bytes (GPT-2, Llama 3, Qwen, DeepSeek,
// Mistral's tekken, gpt-oss) and over characters (Llama 2, Mistral 7B, Gemma), with the parts
// of such files around them: added tokens, NFC, Prepend and Replace; Split, ByteLevel,
// Digits and Metaspace; TemplateProcessing. Any other part is refused by name: a file is
// tokenised as its model does, or not at all.
//
// Complexity. A file of 10 MB takes a fraction of a second and some 50 MB of memory,
// once in a process while it is in use, whatever the number of channels.
//
// Source: the file format of https://github.com/huggingface/tokenizers.
package huggingface
