// Package requestkey finds the request key in the messages of a gRPC method: which
// fields of the request carry the prompt, the session, the model, and which
// fields of the response carry usage. It fills a [policy.Request].
//
// The rule. A [dialect.Dialect] is data: paths of field numbers ("4.1"), and of field
// names where messages are typed ("token_ids.ids"). A [Table] holds the built-in
// dialects and the user's own and is looked up by full method name. For methods
// it does not know it looks for fields called prompt, messages,
// prompt_token_ids, input_ids, session_id and the like. Each path is followed by itself, in one of two ways:
//
//   - typed messages (protobuf-go of either API, golang/protobuf v1, dynamic) through
//     protoreflect, with the descriptors resolved once per message type. Texts and the
//     token ids of generated messages are aliased, not copied;
//   - encoded messages ([]byte, mem.BufferSlice, anything with Bytes() []byte) and
//     gogo's over the wire format. Packed and unpacked varints are
//     accepted, the last of a scalar wins, and
//     no length is trusted. Names find nothing there, only numbers do.
//
// Of a grpc.PreparedMsg and everything else nothing is read: the call is routed by
// metadata.
//
// A prompt is token ids where there are any, else text, else chat messages, else
// what an OpenAI JSON body holds. Chats and
// batches are rendered to one text with separators that no UTF-8 text contains
// (render.go), so that two different conversations never give the same text,
// and append only: turn n is a prefix of turn n+1. A batch's key is its first
// prompt followed by the others, each behind a separator: the first decides the
// prefix, all of them count as load. Media beside token ids are mixed into them.
//
// Complexity. Lookup is one map access. Reading is O(paths) for
// typed messages and O(paths × wire fields) for encoded ones, plus the prompt's own
// length only where it has to be decoded. What the policy does not look at is
// not read: without [policy.UsesPrompt] the prompt is not touched, and JSON
// bodies and tensors are read only for a prompt, a session, or with [WantModel].
//
// Guarantees. No message, however broken, makes a call fail or panic: what
// cannot be read is absent. Only Request.Prompt aliases the message; other
// strings taken from encoded messages are copies. No engine's proto is
// registered or imported.
//
// Source. Field numbers: the engines' published protos, as listed in the tests.
package requestkey
