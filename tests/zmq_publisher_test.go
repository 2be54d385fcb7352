package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvevents"
	"github.com/warmpath/warmpath/internal/kvindex"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// publisher is a program with libzmq that writes vLLM's frames. Its proxies keep their addresses when it restarts.
type publisher struct {
	t              *testing.T
	encoding, form string
	pub, replay    *proxy

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func publish(t *testing.T, encoding, form string) *publisher {
	t.Helper()
	p := &publisher{t: t, encoding: encoding, form: form, pub: newProxy(t), replay: newProxy(t)}
	p.boot()
	t.Cleanup(p.stop)
	return p
}

func (p *publisher) boot() {
	p.t.Helper()
	p.cmd = exec.Command(python(p.t, "zmq", "msgpack"), "testdata/zmq_publisher.py", p.encoding, p.form)
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(p.t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(p.t, err)
	p.out = bufio.NewReader(out)
	require.NoError(p.t, p.cmd.Start())
	var pub, replay int
	_, err = fmt.Fscanln(p.out, &pub, &replay)
	require.NoError(p.t, err)
	p.pub.to(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: pub})
	p.replay.to(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: replay})
}

func (p *publisher) stop() {
	p.in.Close()
	_ = p.cmd.Wait()
}

// event is one event of a batch, in the program's format.
type event map[string]any

// stores returns an event that stores the blocks of a prompt from one on. The engine's hashes are its own.
func stores(prompt []uint32, from int) event {
	e := event{"type": "BlockStored", "block_size": 16, "token_ids": prompt[16*from:], "medium": "GPU", "parent_block_hash": nil}
	hashes := []uint64{}
	for i := range len(prompt)/16 - from {
		hashes = append(hashes, engineHash(prompt, from+i))
	}
	e["block_hashes"] = hashes
	if from > 0 {
		e["parent_block_hash"] = engineHash(prompt, from-1)
	}
	return e
}

// engineHash is the engine's name for a block of a prompt.
func engineHash(prompt []uint32, block int) uint64 {
	return ^kvindex.AppendTokens(nil, prompt, 16, 7)[block]
}

// emit publishes a batch and waits until the program has sent it.
func (p *publisher) emit(lost bool, events ...event) {
	p.t.Helper()
	raw, err := json.Marshal(map[string]any{"events": events, "lost": lost})
	require.NoError(p.t, err)
	_, err = p.in.Write(append(raw, '\n'))
	require.NoError(p.t, err)
	_, err = p.out.ReadString('\n')
	require.NoError(p.t, err)
}

// promptOf is a prompt of full blocks.
func promptOf(n, blocks int) []uint32 {
	prompt := make([]uint32, 16*blocks)
	for i := range prompt {
		prompt[i] = uint32(10_000*n + i)
	}
	return prompt
}

// holds waits until a subscriber has exactly these prompts for the engine.
func holds(t *testing.T, m *kvevents.Manager, k *known, next uint64, prompts ...[]uint32) {
	t.Helper()
	want := make(map[uint64]bool)
	for _, prompt := range prompts {
		for _, h := range kvindex.AppendTokens(nil, prompt, 16, kvindex.SeedFor("", "", "")) {
			want[h] = true
		}
	}
	eventually(t, "everything is applied", func() bool {
		s := m.Status()
		return len(s) == 1 && s[0].Next == next && s[0].Queued == 0 && len(k.holds("r")) == len(want)
	})
	require.Equal(t, want, k.holds("r"))
	require.Empty(t, m.Status()[0].Unreadable)
}

// The subscriber reads the output of libzmq and msgpack in vLLM's format, in every encoding and with both forms of a
// replay: events before the subscription, lost events, a restart.
func TestKVEventsOfARealPublisher(t *testing.T) {
	for _, encoding := range []string{"array", "mixed", "map"} {
		for _, form := range []string{"old", "new"} {
			t.Run(encoding+" "+form, func(t *testing.T) {
				t.Parallel()
				p := publish(t, encoding, form)
				a, b, c := promptOf(1, 6), promptOf(2, 3), promptOf(3, 4)
				p.emit(false, stores(a[:32], 0)) // before there is a subscriber

				k := &known{index: kvindex.New(0), ever: map[uint64]bool{}}
				m := kvevents.NewManager(kvevents.Options{Sink: k.changed, Quiet: 5 * time.Millisecond})
				t.Cleanup(m.Close)
				m.SetFleet([]policy.Attributes{{
					ID: "r", Address: "127.0.0.1:1", KVEvents: "tcp://" + p.pub.addr() + "?topic=kv", KVEventsReplay: "tcp://" + p.replay.addr(),
				}})
				eventually(t, "it listens", func() bool { s := m.Status(); return len(s) == 1 && s[0].Connected })
				p.emit(false, stores(a, 2), stores(b, 0))
				holds(t, m, k, 2, a, b)

				p.emit(true, stores(c[:32], 0)) // never delivered
				p.emit(false, event{"type": "BlockRemoved", "block_hashes": []uint64{engineHash(b, 2), engineHash(b, 1), engineHash(b, 0)}, "medium": "GPU"}, stores(c, 2))
				holds(t, m, k, 4, a, c)
				eventually(t, "it asked for a replay", func() bool { return m.Status()[0].Replays > 0 })

				p.stop()
				p.boot()
				p.pub.cut()
				p.replay.cut()
				p.emit(false, stores(b, 0))
				holds(t, m, k, 1, b)
				eventually(t, "the restart is counted", func() bool { return m.Status()[0].Restarts == 1 })

				p.emit(false, event{"type": "AllBlocksCleared"})
				p.emit(false, stores(a, 0))
				holds(t, m, k, 3, a)
			})
		}
	}
}

// From libzmq to a decision: a prompt that only events report goes to the replica that holds it.
func TestRealKVEventsDecide(t *testing.T) {
	var fleet strings.Builder
	var engines []*publisher
	for i, form := range []string{"old", "new", "new"} {
		p := publish(t, []string{"array", "mixed", "map"}[i], form)
		engines = append(engines, p)
		fmt.Fprintf(&fleet, "    - {id: r%d, address: '127.0.0.1:%d', kv_events: 'tcp://%s', kv_events_replay: 'tcp://%s'}\n", i, i+1, p.pub.addr(), p.replay.addr())
	}
	pb := lookAside(t, "deployments:\n  chat:\n    policy: {kv_aware: {}}\n    replicas:\n"+fleet.String())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	watch, err := pb.WatchReplicas(ctx)
	require.NoError(t, err)
	require.NoError(t, watch.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x", Index: true}}))
	for n, p := range engines {
		prompt := promptOf(n, 160) // worth more than a near tie
		p.emit(false, stores(prompt, 0))
		end := kvindex.AppendTokens(nil, prompt, 16, kvindex.SeedFor("", "", ""))[policy.SuperblockTokens/16-1]
		for reported := false; !reported; { // the server applies the event before it reports to watchers
			m, err := watch.Recv()
			require.NoError(t, err)
			for _, c := range m.GetIndex().GetChanges() {
				reported = reported || slices.Contains(c.GetStored(), end)
			}
		}
		a, err := pb.ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{
			Mode: warmpathv1.PickMode_PICK_MODE_QUERY,
			Key:  &warmpathv1.RequestKey{Prompt: &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: prompt}}},
		})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("r", n), a.GetReplica().GetId())
		require.EqualValues(t, len(prompt), a.GetDecision().GetMatchedTokens())
	}
}
