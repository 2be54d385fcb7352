//go:build linux

package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An outage is a failure of a host, with functions that begin and end it.
type outage struct {
	name       string
	begin, end func(*testing.T, *host)
}

var outages = []outage{
	{
		name:  "the link is down",
		begin: func(t *testing.T, h *host) { run(t, "ip", "link", "set", h.link(), "down") },
		end:   func(t *testing.T, h *host) { run(t, "ip", "link", "set", h.link(), "up") },
	},
	{
		name:  "packets vanish",
		begin: func(t *testing.T, h *host) { run(t, "ip", "route", "add", "blackhole", h.ip()) },
		end:   func(t *testing.T, h *host) { run(t, "ip", "route", "del", "blackhole", h.ip()) },
	},
	{
		// Connections stay half-open: the new host with this address has none of them.
		name:  "the host is lost, and a new one gets its address",
		begin: func(_ *testing.T, h *host) { h.die() },
		end:   func(t *testing.T, h *host) { h.boot(t) },
	},
}

// party is a crowd, and the replicas of its sessions before an outage.
type party struct {
	*crowd
	policy  string
	clients int
	home    []visit
}

// One of four hosts becomes unreachable without notice. No call hangs and none is lost. Sessions of that host are
// served elsewhere and come back. The other sessions stay.
func TestHosts(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	for i, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			o.happen(t, 4*i)
		})
	}
}

const sessionsOfHosts = 16

// happen is the outage of one of four hosts, which are numbered from first on.
func (o *outage) happen(t *testing.T, first int) {
	hosts, addresses := make([]*host, 4), make([]string, 4)
	for i := range hosts {
		hosts[i] = &host{n: first + i}
		hosts[i].boot(t)
		addresses[i] = hosts[i].address()
	}
	config := map[string]any{
		// A call that a healthy replica answered later would move, and might stay at the host that is lost.
		"first_token_timeout": "5s",
		"ejection":            map[string]any{"late_min": "1h", "slow_start": "off", "base_time": "100ms"},
	}
	var parties []*party
	for _, policy := range both {
		for _, clients := range []int{1, 16} {
			p := &party{crowd: newCrowd(t, clients, policy, config, addresses...), policy: policy, clients: clients}
			p.meet(t, addresses...)
			p.home = p.round(t, sessionsOfHosts)
			parties = append(parties, p)
		}
	}
	lost := hosts[0]
	each := func(name string, check func(*testing.T, *party)) {
		t.Run(name, func(t *testing.T) {
			for _, p := range parties {
				t.Run(fmt.Sprintf("%s/%d", p.policy, p.clients), func(t *testing.T) {
					t.Parallel()
					check(t, p)
				})
			}
		})
	}
	o.begin(t, lost)
	each("away", func(t *testing.T, p *party) { p.withoutIt(t, lost.address()) })
	o.end(t, lost)
	each("back", func(t *testing.T, p *party) { p.withItAgain(t, lost.address()) })
}

// withoutIt calls every session twice while a host is away.
func (p *party) withoutIt(t *testing.T, lost string) {
	elsewhere := 0
	for range 2 {
		for i, v := range p.round(t, sessionsOfHosts) {
			require.NotEqual(t, lost, v.at)
			if p.home[i].at == lost {
				elsewhere++
			} else if v.attempts == 1 { // otherwise this machine was too slow to answer in time
				require.Equal(t, p.home[i].at, v.at, "nothing had happened to the replica of session %d", i)
			}
		}
	}
	require.Positive(t, elsewhere, "no session was at the host that is lost")
}

// withItAgain calls all sessions until those of the host are back there. With a cache-aware policy and several
// clients, a session that other clients saw move may stay. The others return.
func (p *party) withItAgain(t *testing.T, lost string) {
	all := p.policy == "consistent_hash" || p.clients == 1
	require.Eventually(t, func() bool {
		back, away := 0, 0
		for i, v := range p.begin(t.Context(), sessionsOfHosts)() {
			switch {
			case v.err != nil:
				t.Errorf("session %d on %s, attempt %d: %v", i, v.at, v.attempts, v.err)
			case v.at != p.home[i].at:
				away++
			case v.at == lost:
				back++
			}
		}
		return t.Failed() || back > 0 && (away == 0 || !all)
	}, enough, 20*time.Millisecond)
}
