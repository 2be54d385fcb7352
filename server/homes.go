package server

import (
	"time"

	routerload "github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// homes balances the homes of a deployment's prompts, from the calls of its clients. The picks made here need no weights:
// they go by where the Router has sent prompts. In a cluster one server changes the weights, and the others follow it. It
// is used with the deployment's mutex held.
type homes struct {
	routerload.Homes
	version uint64 // counts the changes of the weights
}

// maxHomeCalls bounds a line of a report: the sum of many clients does not overflow.
const maxHomeCalls = 1 << 20

// add counts the calls of a report.
func (h *homes) add(id string, o *warmpathv1.ReplicaOutcomes) {
	all := int(min(o.GetHomes(), maxHomeCalls))
	h.Add(id, routerload.HomeCalls{All: all, Spilled: min(int(o.GetSpilled()), all)})
}

// balance changes the weights when it is time to.
func (h *homes) balance(of *roster, p *peers, now time.Time) {
	ids := make([]string, len(of.order))
	for i, m := range of.order {
		ids[i] = m.ID
	}
	if p.leads(now) && h.Step(now, ids) {
		h.version++
		p.homes = h.update(of)
	}
}

// update is the weights as watchers and other servers are sent them.
func (h *homes) update(of *roster) *warmpathv1.HomeUpdate {
	u := new(warmpathv1.HomeUpdate)
	for id, w := range h.Weights() {
		if n := of.numberOf(id); n != 0 {
			u.Replicas, u.Weights = append(u.Replicas, n), append(u.Weights, float32(w))
		}
	}
	return u
}

// follow takes the weights from another server, where it sends some. The watchers get them at the end of the interval.
func (h *homes) follow(x *peerServer, u *warmpathv1.HomeUpdate) {
	if u == nil || len(u.GetReplicas()) != len(u.GetWeights()) {
		return
	}
	weights := make(map[string]float64, len(u.GetReplicas()))
	for i, n := range u.GetReplicas() {
		weights[x.ids[n]] = float64(u.GetWeights()[i])
	}
	h.Follow(weights)
	h.version++
}
