package fleet

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/experimental/balancer/weight"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestEndpoint(t *testing.T) {
	ep := Endpoint(fullFleet[0])
	assert.Equal(t, []resolver.Address{{Addr: "10.0.0.1:50051", ServerName: "a.example"}}, ep.Addresses)
	assert.Equal(t, fullFleet[0], FromEndpoint(ep))

	ep = Endpoint(policy.Attributes{ID: "b", Address: "[fe80::1%eth0]:1"})
	assert.Equal(t, []resolver.Address{{Addr: "[fe80::1%eth0]:1", ServerName: "[fe80::1]:1"}}, ep.Addresses)
}

func TestEndpointAttributesCompare(t *testing.T) {
	a, b := Endpoint(fullFleet[0]), Endpoint(fullFleet[0])
	assert.True(t, a.Attributes.Equal(b.Attributes))
	for _, change := range []func(*policy.Attributes){
		func(r *policy.Attributes) { r.Weight = 3 },
		func(r *policy.Attributes) { r.Adapters = []string{"z"} },
		func(r *policy.Attributes) { r.Draining = false },
	} {
		r := fullFleet[0]
		change(&r)
		assert.False(t, a.Attributes.Equal(Endpoint(r).Attributes), "%+v", r)
	}
	assert.False(t, replicaValue{}.Equal(policy.Attributes{}))
}

func TestFromForeignEndpoint(t *testing.T) {
	ep := resolver.Endpoint{Addresses: []resolver.Address{{Addr: "a:1"}, {Addr: "a:2"}}}
	assert.Equal(t, policy.Attributes{ID: "a:1", Address: "a:1"}, FromEndpoint(ep))

	ep = weight.Set(ep, weight.EndpointInfo{Weight: 7})
	assert.Equal(t, policy.Attributes{ID: "a:1", Address: "a:1", Weight: 7}, FromEndpoint(ep))
	assert.Equal(t, policy.Attributes{}, FromEndpoint(resolver.Endpoint{}))
}
