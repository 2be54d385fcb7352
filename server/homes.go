package server

import (
	"time"

	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// homes balances the homes of a deployment's prompts, from the calls of its clients and from the picks made here. In a
// cluster one server changes the weights, and the others follow it. It is used with the deployment's mutex held.
type homes struct {
	routerload.Homes
	version uint64 // counts the changes of the weights
}

// maxHomeCalls bounds a line of a report: the sum of many clients does not overflow.
const maxHomeCalls = 1 << 20

// add counts the calls of a report. Where the principal is not trusted they do not count: they would move the homes of
// all.
func (h *homes) add(id string, o *warmpathv1.ReplicaOutcomes) {
	all := int(min(o.GetHomes(), maxHomeCalls))
	h.Add(id, routerload.HomeCalls{All: all, Spilled: min(int(o.GetSpilled()), all)})
}

// balanceHomes counts the picks made here, and changes the weights when it is time to. Called with mu held.
func (d *deployment) balanceHomes(rt *router.Router, now time.Time) {
	view, ids := rt.View(), make([]string, len(d.roster.order))
	for i, m := range d.roster.order {
		ids[i] = m.ID
		if calls, spilled := view.ByID(m.ID).State().TakeHomes(); calls > 0 {
			o := &warmpathv1.ReplicaOutcomes{Replica: m.number, Homes: calls, Spilled: spilled}
			d.homes.add(m.ID, o)
			d.peers.showed("", o, false)
		}
	}
	if d.peers.leads(now) && d.homes.Step(now, ids) {
		d.setHomes(rt)
		d.peers.homes = d.homes.update(&d.roster)
	}
}

// setHomes puts weights that are new into force. Called with mu held.
func (d *deployment) setHomes(rt *router.Router) {
	d.homes.version++
	rt.Load.SetHomes(d.homes.Weights())
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

// followHomes takes the weights from another server. Called with mu held.
func (d *deployment) followHomes(x *peerServer, u *warmpathv1.HomeUpdate) {
	if u == nil || len(u.GetReplicas()) != len(u.GetWeights()) {
		return
	}
	weights := make(map[string]float64, len(u.GetReplicas()))
	for i, n := range u.GetReplicas() {
		weights[x.ids[n]] = float64(u.GetWeights()[i])
	}
	d.homes.Follow(weights)
	d.setHomes(d.hosted.Load().router)
	d.wake.give()
}
