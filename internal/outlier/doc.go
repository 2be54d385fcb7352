// Package outlier ejects replicas that fail or hang although they are connected, and takes them back.
//
// # Rule
//
// Evidence against a replica is calls in a row that failed before their first message, and calls whose first message is
// late, ended or still waiting for it. Late is far later than the rest of the fleet takes for
// as much uncached work, and only while the rest answers calls that were sent later: where all are slow no replica is.
//
//	Healthy ─evidence─► Ejected ─its time is over─► HalfOpen ─probe answered─► SlowStart ─► Healthy
//	                       ▲─────a probe fails───────┘
//
// Each ejection is twice as long as the one before. A replica that is new among old ones begins in SlowStart: its share
// grows. All of it is a preference: a request that no other replica may serve still goes to an ejected one.
//
// # Several clients
//
// The clients of a look-aside server report what their calls show ([Detector.Take]); the server's own
// Detector takes the sums ([Detector.Add]), and the clients take what it ejects ([Detector.Follow]). There
// evidence has a principal. While several principals are active, that of one weighs at most half of what ejects,
// rounded up: two must agree.
//
// Source: Envoy's outlier detection; gRFC A50; the circuit breaker of Nygard, "Release It!".
package outlier
