// Package httpendpoint is the look-aside server's HTTP endpoint, for HAProxy with Lua, nginx and scripts.
//
// # Rule
//
// POST /internal/route picks a replica for the OpenAI request that is in the body, if there is one, and in the
// headers. The answer is Ray Serve's: {"replica_id": …, "host": …, "port": …}. The pick adds to the load for the
// next ten seconds, since the end of the request is not reported. GET /healthz shows whether the server takes
// requests.
//
// # Guarantees
//
// Of a body that is too long, too slow or cut, the part that arrived is used: the prefix decides where a prompt goes,
// and the answer shows that the body was not whole. Every refusal has a reason in a header, for programs. Bodies,
// headers, connections and times are bounded by the [Config]. Nothing of a body is kept, logged or sent back.
//
// # Source
//
// Ray Serve LLM's ingress router as its clients see it, with better answers where a body is cut.
package httpendpoint
