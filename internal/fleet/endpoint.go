package fleet

import (
	"slices"
	"strings"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/experimental/balancer/weight"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

type replicaKey struct{}

// replicaValue is an endpoint's replica; never written after it was set.
type replicaValue policy.Attributes

// Equal lets grpc see that an update changed nothing.
func (v replicaValue) Equal(o any) bool {
	w, ok := o.(replicaValue)
	return ok && policy.Attributes(v).Equal(policy.Attributes(w))
}

// String is what channelz shows of an endpoint. gRPC writes it out at each update, so it is short.
func (v replicaValue) String() string { return v.ID }

// Endpoint returns the gRPC endpoint of a replica. Its one address carries
// nothing but the address and the TLS name: both change the connection, and
// nothing else about the replica should. The attributes' slices and map must not
// be written afterwards.
func Endpoint(r policy.Attributes) resolver.Endpoint {
	return resolver.Endpoint{
		Addresses:  []resolver.Address{{Addr: r.Address, ServerName: Authority(r)}},
		Attributes: attributes.New(replicaKey{}, replicaValue(r)),
	}
}

// FromEndpoint returns the attributes of an endpoint's replica. An endpoint of a
// resolver that sets no replica has the least of its addresses as id, whatever their
// order, and the weight that grpc's weight attribute gives it. What is returned must
// not be written.
func FromEndpoint(ep resolver.Endpoint) policy.Attributes {
	if v, ok := ep.Attributes.Value(replicaKey{}).(replicaValue); ok {
		return policy.Attributes(v)
	}
	var a policy.Attributes
	if len(ep.Addresses) > 0 {
		first := slices.MinFunc(ep.Addresses, func(x, y resolver.Address) int { return strings.Compare(x.Addr, y.Addr) })
		a.ID, a.Address = first.Addr, first.Addr
	}
	a.Weight = float64(weight.FromEndpoint(ep).Weight)
	return a
}

// FromMessage returns a replica as it was sent: nothing is checked.
func FromMessage(m *warmpathv1.Replica) policy.Attributes {
	return policy.Attributes{
		ID: m.GetId(), Address: m.GetAddress(), ServerName: m.GetServerName(), Zone: m.GetZone(), Node: m.GetNode(),
		Weight: m.GetWeight(), MaxOngoing: int(m.GetMaxOngoingRequests()), Models: m.GetModels(), Adapters: m.GetAdapters(),
		Ranks: int(m.GetRanks()), Draining: m.GetDraining(), Instance: m.GetInstance(), Stats: m.GetStats(),
		KVEvents: m.GetKvEvents(), KVEventsReplay: m.GetKvEventsReplay(),
		Role: m.GetRole(), Pair: m.GetPair(), KVBootstrap: m.GetKvBootstrap(), KVEngineID: m.GetKvEngineId(),
	}
}

// HomeWeights reads the weights of the homes, by id of the replica. Numbers for which id has none are left out.
func HomeWeights(u *warmpathv1.HomeUpdate, id func(number uint32) string) map[string]float64 {
	all := make(map[string]float64, len(u.GetReplicas()))
	for i, n := range u.GetReplicas() {
		if name := id(n); name != "" && i < len(u.GetWeights()) {
			all[name] = float64(u.GetWeights()[i])
		}
	}
	return all
}

// CacheChange reads a change of a cache of the replica with this id, in superblocks.
func CacheChange(id string, c *warmpathv1.CacheChange) policy.CacheChange {
	return policy.CacheChange{
		Replica: id, Rank: int(c.GetRank()), Tier: policy.Tier(max(c.GetTier(), 1) - 1),
		BlockTokens: int(c.GetBlockTokens()), Coarse: true, Predicted: c.GetRouted(),
		Cleared: c.GetCleared(), Removed: c.GetRemoved(), Stored: c.GetStored(),
	}
}
