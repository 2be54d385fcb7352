package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/sharedstore"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// A blockFleet is two engines with blocks of one size.
type blockFleet struct {
	engines []*simulated
	asked   int
}

func newBlockFleet(t *testing.T, size int) *blockFleet {
	f := new(blockFleet)
	for range 2 {
		f.engines = append(f.engines, simulateBlocks(t, "", nil, size, 200_000))
	}
	return f
}

// replicas is the engines as a deployment or a fleet file has them.
func (f *blockFleet) replicas() (text string) {
	for i, e := range f.engines {
		text += fmt.Sprintf("\n    - {id: r%d, address: %q, kv_events: %q}", i, e.feed.addr(), e.kvEvents())
	}
	return text
}

// warm has an engine compute a new prompt of 1,100 tokens, without a client.
func (f *blockFleet) warm() (prompt []uint32, replica string, err error) {
	f.asked++
	prompt = make([]uint32, 1100)
	for i := range prompt {
		prompt[i] = uint32(10_000*f.asked + i)
	}
	at := f.asked % len(f.engines)
	return prompt, fmt.Sprint("r", at), f.engines[at].ask(fmt.Sprint("warm ", f.asked), prompt, 1)
}

// finds waits until a client's call for a prompt of 1,100 tokens that only one engine has seen goes there, with so many
// matched tokens. More and more prompts are warm before the next one is asked for: events take time to arrive.
func (f *blockFleet) finds(t *testing.T, cc *grpc.ClientConn, mode string, matched int) {
	t.Helper()
	reason := policy.ReasonPrefixMatch
	if mode == "central" {
		reason = "central"
	}
	type warm struct {
		prompt []uint32
		at     string
	}
	var all []warm // the last ones
	eventually(t, "a warm engine is found", func() bool {
		prompt, at, err := f.warm()
		if err != nil {
			return false
		}
		if all = append(all, warm{prompt, at}); len(all)%2 > 0 && len(all) < 64 {
			return false
		}
		w := all[len(all)/2-1]
		if len(all) == 64 {
			all = all[1:]
		}
		d, err := f.ask(t, cc, w.prompt)
		return err == nil && d.Replica == w.at && d.Reason == reason && d.MatchedTokens == matched
	})
}

// deployment is the deployment of a look-aside server.
func (f *blockFleet) deployment(mode string) string {
	if mode != "central" {
		return "    replicas:" + f.replicas()
	}
	return "    mode: central\n    central_deadline: 10s\n    replicas:" + f.replicas()
}

func (f *blockFleet) ask(t *testing.T, cc *grpc.ClientConn, prompt []uint32) (d client.Decision, err error) {
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(client.WithDecision(deadline(t), &d), &enginepb.GenerateRequest{
		Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: prompt}},
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return d, err
}

// A client that follows the engines itself matches their blocks, whatever their size: that of a superblock, too.
func TestBlockSizesOfEngines(t *testing.T) {
	for size, matched := range map[int]int{32: 1088, 512: 1024, 528: 1056} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f, path := newBlockFleet(t, size), filepath.Join(t.TempDir(), "fleet.yaml")
			require.NoError(t, os.WriteFile(path, []byte("replicas:"+f.replicas()), 0o600))
			f.finds(t, dial(t, "warmpath-file://"+path), "", matched)
		})
	}
}

// A client of a look-aside server matches the blocks that the server follows, whatever their size, if the server decides
// and if the client does. Superblocks consist of blocks that divide them.
func TestBlockSizesBehindAServer(t *testing.T) {
	for _, size := range []int{32, 512, 528} {
		whole := 1100 / size * size
		for mode, matched := range map[string]int{"central": whole, "broadcast": 1024} {
			if mode == "broadcast" && size == 528 {
				continue
			}
			t.Run(fmt.Sprint(mode, " ", size), func(t *testing.T) {
				f := newBlockFleet(t, size)
				at, _ := lookasideWith(t, "", f.deployment(mode))
				f.finds(t, dial(t, "warmpath://"+at+"/chat"), mode, matched)
			})
		}
	}
}

// Engines that come back with blocks of another size are matched in these.
func TestBlockSizesChange(t *testing.T) {
	for mode, matched := range map[string]int{"central": 1088, "broadcast": 1024} {
		t.Run(mode, func(t *testing.T) {
			f := newBlockFleet(t, 32)
			at, _ := lookasideWith(t, "", f.deployment(mode))
			cc := dial(t, "warmpath://"+at+"/chat")
			f.finds(t, cc, mode, matched)
			for _, e := range f.engines {
				e.kill()
				e.block = 64
				e.boot()
				e.rpc.cut()
				e.cutEvents()
			}
			f.finds(t, cc, mode, matched)
		})
	}
}

// The servers of a cluster share the work of following engines. The clients of each server learn what one of them
// follows.
func TestBlockSizesInACluster(t *testing.T) {
	opened := cluster.Open
	t.Cleanup(func() { cluster.Open = opened })
	bus := new(memoryBus)
	cluster.Open = func(cluster.Config, *slog.Logger) (cluster.Bus, error) { return bus, nil }
	for _, mode := range []string{"central", "broadcast"} {
		t.Run(mode, func(t *testing.T) {
			f := newBlockFleet(t, 32)
			config := "cluster: {nats: {url: 'nats://memory:4222'}}\nload_interval: 20ms\ndeployments:\n  chat:\n" + f.deployment(mode)
			var channels []*grpc.ClientConn
			for range 2 {
				at := lookAsideConn(t, config, server.Options{Logger: slog.New(slog.DiscardHandler)}).Target()
				channels = append(channels, dial(t, "warmpath://"+at+"/chat"))
			}
			for _, cc := range channels {
				f.finds(t, cc, mode, 1024)
			}
		})
	}
}

// A principal that is not trusted is sent the sizes of the engines' blocks, and nothing of what caches hold.
func TestBlockSizesForUntrustedPrincipals(t *testing.T) {
	f, token, trusted := newBlockFleet(t, 32), "app-0123456789abc", "ops-0123456789abc"
	conn := lookAsideConn(t, "load_interval: 20ms\nprincipals:\n- {name: app, token_file: "+tokenFile(t, token)+"}\n- {name: ops, trusted: true, token_file: "+
		tokenFile(t, trusted)+"}\ndeployments:\n  chat:\n"+f.deployment("central"), server.Options{Logger: slog.New(slog.DiscardHandler)})
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(deadline(t), "authorization", "Bearer "+token)
	}
	cc := dial(t, "warmpath://"+conn.Target()+"/chat", client.WithServerDialOptions(insecureOption(), grpc.WithPerRPCCredentials(plainToken(token))))
	eventually(t, "the server finds a warm engine", func() bool {
		prompt, _, err := f.warm()
		require.NoError(t, err)
		_, err = f.ask(t, cc, prompt)
		require.NoError(t, err)
		a, err := warmpathv1.NewStatusServiceClient(conn).GetStatus(as(trusted), new(warmpathv1.GetStatusRequest))
		return err == nil && slices.ContainsFunc(a.GetDeployments()[0].GetDecisions(), func(d *warmpathv1.DecisionCount) bool {
			return d.GetReason() == string(policy.ReasonPrefixMatch)
		})
	})

	watch, err := warmpathv1.NewRoutingServiceClient(conn).WatchReplicas(as(token))
	require.NoError(t, err)
	require.NoError(t, watch.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x", Index: true}}))
	told := make(map[uint32]uint32)
	for len(told) < 2 {
		m, err := watch.Recv()
		require.NoError(t, err)
		for _, c := range m.GetIndex().GetChanges() {
			require.Empty(t, c.GetStored())
			require.Empty(t, c.GetRemoved())
			told[c.GetReplica()] = c.GetBlockTokens()
		}
	}
	require.Equal(t, map[uint32]uint32{1: 32, 2: 32}, told)
}

// A plainToken is a token that is sent in plaintext.
type plainToken string

func (b plainToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (plainToken) RequireTransportSecurity() bool { return false }

// A memoryBus joins the servers of this process.
type memoryBus struct {
	mu   sync.Mutex // guards ends
	ends map[chan []byte]string
}

func (b *memoryBus) Publish(subject string, message []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for end, of := range b.ends {
		if of == subject {
			select {
			case end <- message:
			default: // lost
			}
		}
	}
	return nil
}

func (b *memoryBus) Subscribe(subject string, take func([]byte)) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ends == nil {
		b.ends = make(map[chan []byte]string)
	}
	end, done := make(chan []byte, 1000), make(chan struct{})
	b.ends[end] = subject
	go func() {
		defer close(done)
		for m := range end {
			take(m)
		}
	}()
	return func() {
		b.mu.Lock()
		delete(b.ends, end)
		b.mu.Unlock()
		close(end)
		<-done
	}, nil
}

func (b *memoryBus) Store(string) policy.Store { return sharedstore.NewMemory(time.Now) }
func (b *memoryBus) Connected() bool           { return true }
func (b *memoryBus) Close()                    {}
