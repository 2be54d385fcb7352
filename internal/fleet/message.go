package fleet

import (
	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Message returns a replica as it is sent.
func Message(a policy.Attributes) *warmpathv1.Replica {
	return &warmpathv1.Replica{
		Id: a.ID, Address: a.Address, ServerName: a.ServerName, Zone: a.Zone, Node: a.Node, Weight: a.Weight,
		MaxOngoingRequests: uint32(max(a.MaxOngoing, 0)), Models: a.Models, Adapters: a.Adapters,
		Ranks: uint32(max(a.Ranks, 0)), Draining: a.Draining, Instance: a.Instance, Stats: a.Stats,
		KvEvents: a.KVEvents, KvEventsReplay: a.KVEventsReplay,
	}
}

// FromMessage returns a replica as it was sent: nothing is checked.
func FromMessage(m *warmpathv1.Replica) policy.Attributes {
	return policy.Attributes{
		ID: m.GetId(), Address: m.GetAddress(), ServerName: m.GetServerName(), Zone: m.GetZone(), Node: m.GetNode(),
		Weight: m.GetWeight(), MaxOngoing: int(m.GetMaxOngoingRequests()), Models: m.GetModels(), Adapters: m.GetAdapters(),
		Ranks: int(m.GetRanks()), Draining: m.GetDraining(), Instance: m.GetInstance(), Stats: m.GetStats(),
		KVEvents: m.GetKvEvents(), KVEventsReplay: m.GetKvEventsReplay(),
	}
}
