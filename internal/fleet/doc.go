// Package fleet describes replicas for resolvers, clients and servers: the
// resolvers, the gRPC balancer and the look-aside server read the same fleet
// file and carry the same attributes.
//
// The rule. A fleet is a list of [policy.Attributes]. It comes from a YAML file,
//
//	replicas:
//	- {id: a, address: "10.0.0.1:50051", zone: z1, node: n1, weight: 2, max_ongoing_requests: 64}
//	- {address: "10.0.0.2:50051", server_name: b.example, models: [m], adapters: [x], draining: true}
//
// read and followed by package fleetfile, or from a list on a command
// line or in a dial target, read by [ParseList]. In gRPC a replica is one
// endpoint made by [Endpoint]; [FromEndpoint] reads it back, and makes do with
// the address (and grpc's weight attribute) where another resolver was at work.
//
// Guarantees. What is out of bounds is refused with an error that names the field.
// A checked fleet has a valid address in every replica, and neither an id nor an
// address twice. Attributes sit on the endpoint, not on its address, so that
// changing them keeps the connection. Package admission is stricter.
//
// Names on the wire. A replica's own authority is its server_name, else its
// address; [Endpoint] puts it in Address.ServerName, which grpc-go uses both as
// the TLS name and as the :authority header of every call on that connection.
//
// Complexity. Linear in the fleet.
//
// Source: gRFC A61 for endpoints;
// experimental/balancer/weight in grpc-go for the shape of the accessors.
package fleet
