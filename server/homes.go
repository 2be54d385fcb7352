package server

import (
	"time"

	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/homeweights"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// homes balances the homes of a deployment's prompts. The picks made here need no weights: they go by where the Router
// has sent prompts. All servers of a cluster count the calls, and one of them changes the weights. Where two have done
// so, the later change is in force everywhere. It is used with the deployment's mutex held.
type homes struct {
	homeweights.Learner
	version uint64 // when the weights changed, in ns since 1970, or later; 0 = there are none
}

// maxHomeCalls bounds a line of a report: the sum of many clients does not overflow.
const maxHomeCalls = 1 << 20

// add counts the calls of a report.
func (h *homes) add(id string, o *warmpathv1.ReplicaOutcomes) {
	all := int(min(o.GetHomes(), maxHomeCalls))
	h.Add(id, homeweights.Calls{All: all, Spilled: min(int(o.GetSpilled()), all)})
}

// balance changes the weights when it is time to.
func (h *homes) balance(of *roster, p *peers, now time.Time) {
	ids := make([]string, len(of.order))
	for i, m := range of.order {
		ids[i] = m.ID
	}
	if h.Step(now, ids, p.leads(now)) {
		h.version = max(h.version+1, uint64(now.UnixNano()))
		p.homes = h.update(of)
	}
}

// update is the weights as watchers and other servers are sent them, nil where there are none.
func (h *homes) update(of *roster) *warmpathv1.HomeUpdate {
	if h.version == 0 {
		return nil
	}
	u := &warmpathv1.HomeUpdate{Version: h.version}
	for id, w := range h.Weights() {
		if n := of.numberOf(id); n != 0 {
			u.Replicas, u.Weights = append(u.Replicas, n), append(u.Weights, float32(w))
		}
	}
	return u
}

// follow takes weights that are later than those here. The watchers get them at the end of the interval.
func (h *homes) follow(x *peerServer, u *warmpathv1.HomeUpdate) {
	if u.GetVersion() <= h.version || len(u.GetReplicas()) != len(u.GetWeights()) {
		return
	}
	weights := fleet.HomeWeights(u, func(n uint32) string { return x.ids[n] })
	if len(weights) == 0 {
		return // the sender has no replica at this time
	}
	h.Follow(weights)
	h.version = u.GetVersion()
}
