package fleet

import (
	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

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
