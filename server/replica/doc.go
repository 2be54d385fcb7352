// Package replica is what a model server written in Go imports to be a good replica: it refuses what is too much for
// it, reports its load, registers itself to the look-aside server, and leaves without losing a call.
//
//	r, err := replica.New(replica.Config{
//		Replica:     policy.Attributes{Address: "10.0.0.1:50051", MaxOngoing: 64},
//		Servers:     []string{"router:4770"},
//		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(creds)},
//	})
//	s := grpc.NewServer(r.ServerOptions()...)
//	pb.RegisterEngineServer(s, engine)
//	err = r.Serve(ctx, s, listener) // until ctx and the calls under way have ended
//
// # Rule
//
// Interceptors count the calls under way. One that finds max_ongoing_requests of them is refused at once with
// RESOURCE_EXHAUSTED and the trailer warmpath-rejection-bin, which carries the count: warmpath's clients retry on
// another replica and use the count. An admitted call ends with the replica's load as an ORCA report, in the trailer
// endpoint-load-metrics-bin; load_poll reads the same report out of band. gRPC's own services (health, reflection,
// channelz, ORCA) are neither counted nor refused.
//
// Each look-aside server is sent everything about the replica in every heartbeat, so it has the replica again after
// one, should it have been restarted. A change of the adapters, and draining, are sent at once. A server that cannot
// be reached costs nothing but attempts, a few seconds apart.
//
// A replica that drains reports it (health NOT_SERVING, heartbeats), serves new calls for DrainNotice, until the clients
// have the report, takes no new calls after that (GOAWAY), waits for those under way, and deregisters.
//
// # Complexity
//
// A call costs a few atomic operations and one short trailer; no lock is taken. A heartbeat is one unary call per
// server.
//
// # Guarantees
//
// No more than max_ongoing_requests calls are ever in the handlers, and no call is refused while there are fewer. A
// handler that panics, or whose call is gone, is counted out. Refused calls never reach a handler. Requests are not
// read, kept or logged. No goroutine runs before [Replica.Serve] or after it.
//
// A unary call's message was read by gRPC before it can be refused; a stream's was not.
//
// Source: Ray Serve's rejection by replicas with the queue length; gRFC A51 (ORCA); gRPC's health checking protocol;
// warmpath.v1.RoutingService.Register.
package replica
