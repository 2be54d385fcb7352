// Package apiserver runs a real Kubernetes API server with its etcd on loopback, for tests.
//
// The rule. There is no kubelet and no controller: a test writes Pods, EndpointSlices and custom resources itself, with
// order, conditions and races under its control. RBAC is real: what a Role grants is tried with a token of
// [Server.ServiceAccount]. The admission plugin that wants a service account in each Pod is off.
//
// The programs are those that .ci/kubernetes builds and caches. They are looked for in the directory that the variable
// WARMPATH_KUBERNETES names, else in that script's own. Where they are missing, [Start] returns
// [ErrMissing]; [Shared] skips the test, or fails it where WARMPATH_REQUIRE_ALL is set.
//
// A start takes some seconds of processor time, so [Shared] serves all tests of a package, each with a namespace of
// its own. [Server.Close] ends both processes; they end as well when the process that started them is gone.
package apiserver
