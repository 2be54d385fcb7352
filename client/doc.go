// Package client is what an application imports: it dials a channel whose calls
// go to the replica that is warm for them.
//
//	conn, err := client.New("warmpath:///10.0.0.1:50051,10.0.0.2:50051",
//		grpc.WithTransportCredentials(insecure.NewCredentials()))
//	stub := pb.NewInferenceClient(conn)
//
// The rule. A unary call, and a server-streaming call, is routed by its request
// message: opening the stream waits for the first message, the request key is
// taken from it by the method's dialect, a replica is reserved, and only then is
// gRPC asked for a stream. Client-streaming and bidirectional calls open at once
// and are routed by metadata and context alone, unless their dialect asks to be
// deferred.
//
// Until the first response message the call may be tried again on another replica: at most
// [github.com/warmpath/warmpath/balancer/policy.Config] max_attempts times in all, and once only after a request that
// reached a replica, within the channel's budget of retries. A prompt under which the connections of two replicas
// broke is not sent to a third. Where the first message is late, and the config asks for it, the attempt is made
// again elsewhere. Where the service config has a retryPolicy for the method, gRPC's own retries are used instead.
//
// Guarantees. A reservation never outlives its call: it ends with the last message,
// with the call's context, or when an abandoned stream is found unreachable. A
// prompt is not kept alive past the first response message. Options of gRPC and
// of other interceptors work as without warmpath.
package client
