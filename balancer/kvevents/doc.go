// Package kvevents is imported for its effect: it makes KV events over ZeroMQ usable, as vLLM and SGLang publish
// them, in channels whose config or fleet has a kv_events that begins with tcp:// or sources:. Events through gRPC
// (grpc:) need no import, and the look-aside server has it.
//
//	import _ "github.com/warmpath/warmpath/balancer/kvevents"
package kvevents
