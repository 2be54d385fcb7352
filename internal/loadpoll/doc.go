// Package loadpoll asks engines that do not register themselves how busy they are: by gRPC (GetLoads, as SMG's servicers have
// it) or by the few lines needed of their Prometheus page.
//
// # Rule
//
// Every replica is asked once an interval, at a time of its own, so that not all are asked at once. What it reports of requests
// that run and wait is a load; what it reports of the size of its KV cache is a capacity. An engine that does not answer is asked
// less and less often, up to every ten seconds, and nothing is reported of it: the receiver decides how long a load counts.
// A replica with several data-parallel ranks has the sum of their requests, and the smallest of their caches.
//
// # Complexity
//
// A goroutine for each replica; at most 64 questions are under way at once. Of a page only the lines with one of the names that
// are wanted are parsed.
//
// # Guarantees
//
// An answer is bounded in bytes and time, redirects are not followed, and no environment variable sends the question through a
// proxy. No proto name of an engine's is registered: fields are read by number.
//
// Source: the metrics that vLLM, SGLang and TensorRT-LLM publish, for the names on the pages; the engines' published protos
// for the numbers of the fields.
package loadpoll
