package nats

import (
	"encoding/json"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	// lostAfter is how long a server is not reached before it is taken out of the group, looked at every lookInterval.
	lostAfter    = 15 * time.Second
	lookInterval = 5 * time.Second
	// leaveTime is how long a server that ends waits for the others, looked at every leaveInterval.
	leaveTime, leaveInterval = 3 * time.Second, 50 * time.Millisecond
)

// group is the embedded servers whose majority JetStream needs. A server has another name in each life, and one that
// has ended would count for ever: it takes itself out, and the leader takes out those that are lost.
type group struct {
	embed *natsserver.Server
	conn  *nats.Conn // of the system account
	left  chan struct{}
	ended chan struct{}
}

func joinGroup(embed *natsserver.Server, password string) (*group, error) {
	conn, err := nats.Connect("", nats.InProcessServer(embed), nats.UserInfo(operator, password))
	if err != nil {
		return nil, err
	}
	g := &group{embed: embed, conn: conn, left: make(chan struct{}), ended: make(chan struct{})}
	go g.look()
	return g, nil
}

// look takes out those that are lost, where this server leads.
func (g *group) look() {
	defer close(g.ended)
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-g.left:
			return
		case <-tick.C:
		}
		if info, err := g.embed.Jsz(nil); err == nil && info.Meta != nil {
			for _, r := range info.Meta.Replicas {
				if r.Offline && r.Active > lostAfter {
					g.remove(natsserver.JSApiMetaServerRemoveRequest{Peer: r.Peer})
				}
			}
		}
	}
}

// leave takes this server out once the others that run are in the group, and a majority agrees, or after leaveTime.
func (g *group) leave() {
	close(g.left)
	<-g.ended
	defer g.conn.Close()
	for began := time.Now(); time.Since(began) < leaveTime; time.Sleep(leaveInterval) {
		if g.complete() && g.remove(natsserver.JSApiMetaServerRemoveRequest{Server: g.embed.Name()}) {
			return
		}
	}
}

// complete reports whether all servers that this one is connected to are in the group.
func (g *group) complete() bool {
	info, err := g.embed.Jsz(nil)
	return err == nil && info.Meta != nil && info.Meta.Size > g.embed.NumRemotes()
}

// remove takes a server out, and reports whether that is done.
func (g *group) remove(r natsserver.JSApiMetaServerRemoveRequest) bool {
	data, err := json.Marshal(r)
	if err != nil {
		return false
	}
	m, err := g.conn.Request(natsserver.JSApiRemoveServer, data, closeTime) // without a leader there is no answer
	var a natsserver.JSApiMetaServerRemoveResponse
	return err == nil && json.Unmarshal(m.Data, &a) == nil && a.Success
}
