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
// Detector takes the sums ([Detector.Add]), and the clients take what it ejects ([Detector.SetRemote]). There
// evidence has a principal, and one principal weighs at most one client's threshold. A replica ejected on the
// evidence of one principal, while others are active, is half-open at once for the others: an answer to one
// of them overrules the ejection, and so does their silence; then the reports of that principal on the
// replica weigh nothing for MaxTime.
//
// Source: Envoy's outlier detection; gRFC A50; the circuit breaker of Nygard, "Release It!".
package outlier
