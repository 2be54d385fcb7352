// Package httpendpoint is the door into the look-aside server for callers that speak HTTP: HAProxy with Lua, nginx, scripts.
//
// # Rule
//
// POST /internal/route asks for a replica for the OpenAI request that is in the body, if there is one, and in the headers. The
// answer is Ray Serve's: {"replica_id": …, "host": …, "port": …}. The pick counts, for as long as the server's counted_hold says,
// since nobody will tell when the request has ended. GET /healthz says whether the server is serving.
//
// # Guarantees
//
// Of a body that is too long, comes too slowly or ends early, what has arrived is used: the prefix decides where a prompt goes, and
// the answer says that it was not all. Every refusal has a reason in a header that programs can go by. Bodies, headers,
// connections and times are bounded by the [Config]. Nothing of a body is kept, logged or sent back.
//
// # Source
//
// Ray Serve LLM's ingress router, as far as callers see it, with better answers where a body is cut.
package httpendpoint
