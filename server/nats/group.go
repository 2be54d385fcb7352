package nats

import (
	"encoding/json"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	// leaveTime is how long a server that ends waits for the others, looked at every leaveInterval.
	leaveTime, leaveInterval = 3 * time.Second, 50 * time.Millisecond
)

// group is the embedded servers whose majority JetStream needs. A server has another name in each life, and one that
// has ended would count for ever: it takes itself out.
type group struct {
	embed *natsserver.Server
	conn  *nats.Conn // of the system account
}

func joinGroup(embed *natsserver.Server, password string) (*group, error) {
	conn, err := nats.Connect("", nats.InProcessServer(embed), nats.UserInfo(operator, password))
	if err != nil {
		return nil, err
	}
	return &group{embed, conn}, nil
}

// leave takes this server out once the others that run are in the group, and a majority agrees, or after leaveTime.
func (g *group) leave() {
	defer g.conn.Close()
	for began := time.Now(); time.Since(began) < leaveTime; time.Sleep(leaveInterval) {
		if g.complete() && g.removed() {
			return
		}
	}
}

// complete reports whether all servers that this one is connected to are in the group.
func (g *group) complete() bool {
	info, err := g.embed.Jsz(nil)
	return err == nil && info.Meta != nil && info.Meta.Size > g.embed.NumRemotes()
}

// removed takes this server out, and reports whether that is done.
func (g *group) removed() bool {
	data, err := json.Marshal(natsserver.JSApiMetaServerRemoveRequest{Server: g.embed.Name()})
	if err != nil {
		return false
	}
	m, err := g.conn.Request(natsserver.JSApiRemoveServer, data, closeTime) // without a leader there is no answer
	var a natsserver.JSApiMetaServerRemoveResponse
	return err == nil && json.Unmarshal(m.Data, &a) == nil && a.Success
}
