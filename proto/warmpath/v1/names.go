// Package warmpathv1 is warmpath's wire contract: the generated messages of warmpath.v1 and the names of the
// metadata and trailers that carry them or that carry the key of a request.
//
// Names are stable within v1. Keys that end in -bin hold one serialised message; gRPC encodes them in base64
// where the transport needs it.
package warmpathv1

// Request metadata that names the session of a request. SessionID is read before XSessionID, the
// common denominator of clients and routers in the field. Both are the defaults of session_keys.
const (
	// MetadataSessionID is Ray Serve's name of the session.
	MetadataSessionID = "session_id"
	// MetadataXSessionID is the name that most clients and routers use.
	MetadataXSessionID = "x-session-id"
)

// MetadataDataParallelRank pins a request to a data-parallel rank inside the replica: a decimal uint32, as
// vLLM reads it. A replica answers INVALID_ARGUMENT to anything else.
const MetadataDataParallelRank = "x-data-parallel-rank"

// MetadataAdopted marks a stream of ChooseReplicas: the caller, which has the deployment's config, has applied its
// percentage already: the server's policy decides for all that is asked.
const MetadataAdopted = "warmpath-adopted"

// TrailerRejection carries a serialised Rejection in the trailer of a call that ends with RESOURCE_EXHAUSTED.
// Without it, RESOURCE_EXHAUSTED is not a rejection by admission and may come after work was done.
const TrailerRejection = "warmpath-rejection-bin"

// HeaderDrains is in the header of the answers to grpc.health.v1's Watch of a replica that is NOT_SERVING while it only
// drains: it takes no new sessions, and still serves what it is sent. Any value counts.
const HeaderDrains = "warmpath-drains"

// TrailerLoad carries the replica's load at the end of a call: an OrcaLoadReport of gRFC A51, whose named metrics are
// those below. Values are counts; a metric that is missing is not known.
const TrailerLoad = "endpoint-load-metrics-bin"

// Named metrics of TrailerLoad. The first two are vLLM's, the last is Triton's; draining is ours.
const (
	// MetricRunning counts the requests that the replica computes.
	MetricRunning = "num_requests_running"
	// MetricWaiting counts the requests that it has accepted and not begun.
	MetricWaiting = "num_requests_waiting"
	// MetricUncachedTokens counts prompt tokens that are neither cached nor prefilled yet.
	MetricUncachedTokens = "waiting_uncached_tokens"
	// MetricDraining is 1 where the replica takes no new sessions, and else missing.
	MetricDraining = "draining"
	// MetricTokenCapacity is the size of the KV cache in tokens.
	MetricTokenCapacity = "max_token_capacity"
)
