// Package dialect describes gRPC services: in which fields of a method's messages the
// prompt, the session, the model and the usage stand. A [Dialect] is data: paths of field
// numbers ("4.1"), and of field names where messages are typed ("token_ids.ids").
// client.WithDialects and the config field dialects take it. Published engines are built
// in; of other methods the fields called prompt, messages, prompt_token_ids, input_ids,
// session_id and the like are read.
//
// A [Tokenizer] makes token ids of a prompt that is text. The one of a channel is named by
// the config field tokenizer; package tokenizers registers those for files, and a program
// registers its own by [RegisterTokenizer].
package dialect
