package server

import (
	"slices"

	"google.golang.org/protobuf/proto"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// maxHashes bounds the hashes of one change of a cache, as it is published.
const maxHashes = maxPart / 16

// packed returns an update as several of about maxPart bytes, one at least, to be applied in order. What is one item
// stays whole, whatever its size. A message bus takes 1 MiB as a rule.
func packed(u *warmpathv1.PeerUpdate) []*warmpathv1.PeerUpdate {
	if proto.Size(u) <= maxPart {
		return []*warmpathv1.PeerUpdate{u}
	}
	p := packer{snapshot: u.GetSnapshot()}
	first := p.room(proto.Size(u.GetHomes()))
	first.Leaving, first.Wants, first.Config, first.Homes = u.GetLeaving(), u.GetWants(), u.GetConfig(), u.GetHomes()
	for _, x := range u.GetNamed() {
		to := p.room(proto.Size(x))
		to.Named = append(to.Named, x)
	}
	loads := u.GetLoads()
	for i, number := range loads.GetReplicas() {
		const row = 30 // bytes of the four columns
		to := p.room(row)
		if to.Loads == nil {
			to.Loads = new(warmpathv1.Loads)
		}
		to.Loads.Replicas = append(to.Loads.Replicas, number)
		to.Loads.Ongoing = append(to.Loads.Ongoing, loads.GetOngoing()[i])
		to.Loads.QueuedTokens = append(to.Loads.QueuedTokens, loads.GetQueuedTokens()[i])
		to.CachedTokens = append(to.CachedTokens, u.GetCachedTokens()[i])
	}
	for _, x := range u.GetOutcomes() {
		to := p.room(proto.Size(x))
		to.Outcomes = append(to.Outcomes, x)
	}
	for _, x := range u.GetRoutes() {
		to := p.room(proto.Size(x))
		to.Routes = append(to.Routes, x)
	}
	for _, whole := range u.GetCaches() {
		for _, x := range divided(whole) {
			to := p.room(proto.Size(x))
			to.Caches = append(to.Caches, x)
		}
	}
	for _, x := range u.GetHeartbeats() {
		to := p.room(proto.Size(x))
		to.Heartbeats = append(to.Heartbeats, x)
	}
	for _, x := range u.GetRegistrations() {
		to := p.room(proto.Size(x))
		to.Registrations = append(to.Registrations, x)
	}
	return p.all
}

// A packer makes messages of bounded size.
type packer struct {
	snapshot warmpathv1.SnapshotPart
	all      []*warmpathv1.PeerUpdate
	size     int // of the last one, in bytes
}

// room returns the update for the next item of a size.
func (p *packer) room(size int) *warmpathv1.PeerUpdate {
	const tag = 8 // bytes of an item's tag and length, at most
	if size += tag; len(p.all) == 0 || p.size > 0 && p.size+size > maxPart {
		p.all, p.size = append(p.all, &warmpathv1.PeerUpdate{Snapshot: p.snapshot}), 0
	}
	p.size += size
	return p.all[len(p.all)-1]
}

// divided returns a change of a cache as several of bounded size, to be applied in order.
func divided(c *warmpathv1.CacheChange) (all []*warmpathv1.CacheChange) {
	if len(c.GetRemoved())+len(c.GetStored()) <= maxHashes {
		return []*warmpathv1.CacheChange{c}
	}
	part := func() *warmpathv1.CacheChange {
		all = append(all, &warmpathv1.CacheChange{
			Replica: c.GetReplica(), Rank: c.GetRank(), Tier: c.GetTier(), BlockTokens: c.GetBlockTokens(), Routed: c.GetRouted(),
		})
		return all[len(all)-1]
	}
	part().Cleared = c.GetCleared()
	for some := range slices.Chunk(c.GetRemoved(), maxHashes) {
		part().Removed = some
	}
	for some := range slices.Chunk(c.GetStored(), maxHashes) {
		part().Stored = some
	}
	return all
}
