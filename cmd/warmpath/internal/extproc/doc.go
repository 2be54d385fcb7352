// Package extproc is the look-aside server's ext_proc endpoint: gateways ask it for a replica by the endpoint picker
// protocol (Gateway API inference extension, v1) over Envoy's external processing.
//
// # Rule
//
// One stream is one HTTP request. Its headers and the beginning of its body are the question; the answer is the
// replica's address, with fallbacks in the policy's order, as a header and as dynamic metadata. The pick is a
// reservation: the first chunk of the response ends its prefill, the end of the response, or of the stream, releases
// it with its outcome and usage. If the gateway reports that another replica has served, the load moves there.
//
// # Guarantees
//
// Of a body at most [Options].MaxBody bytes are read for the key, and of all together [Options].MaxHeld; what is longer
// is routed by its beginning. Beyond that at most 64 KiB are kept of a request. Chunks are passed on unchanged and
// in order. Nothing of a body is logged.
//
// # Source
//
// The endpoint picker protocol of the Gateway API inference extension; usage as OpenAI's API and the dialects report
// it.
package extproc
