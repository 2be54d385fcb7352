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

// TrailerRejection carries a serialised Rejection in the trailer of a call that ends with RESOURCE_EXHAUSTED.
// Without it, RESOURCE_EXHAUSTED is not a rejection by admission and may come after work was done.
const TrailerRejection = "warmpath-rejection-bin"
