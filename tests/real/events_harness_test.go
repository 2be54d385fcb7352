package real

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	commonpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/smg/grpc/common"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	_ "github.com/warmpath/warmpath/resolver/file"
)

// follower is what an engine of VllmEngine has published of its cache.
type follower struct {
	mu      sync.Mutex // guards what follows
	held    map[block]bool
	removed int
	stored  map[string]int32 // the rank of each block that was ever stored, by its tokens
}

// block is a block in the cache of a rank.
type block struct {
	rank int32
	hash int64
}

// follow follows an engine until the test ends.
func follow(t testing.TB, e *engine) *follower {
	t.Helper()
	conn, err := grpc.NewClient(e.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := enginepb.NewVllmEngineClient(conn).SubscribeKvEvents(ctx, &commonpb.SubscribeKvEventsRequest{})
	require.NoError(t, err)
	f := &follower{held: make(map[block]bool), stored: make(map[string]int32)}
	var reading sync.WaitGroup
	reading.Go(func() {
		for batch, err := stream.Recv(); err == nil; batch, err = stream.Recv() {
			f.apply(batch)
		}
	})
	t.Cleanup(func() { cancel(); reading.Wait(); _ = conn.Close() })
	return f
}

func (f *follower) apply(batch *commonpb.KvEventBatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range batch.GetEvents() {
		for _, b := range e.GetStored().GetBlocks() {
			f.held[block{batch.GetDpRank(), b.GetBlockHash()}] = true
			f.stored[fmt.Sprint(b.GetTokenIds())] = batch.GetDpRank()
		}
		for _, h := range e.GetRemoved().GetBlockHashes() {
			delete(f.held, block{batch.GetDpRank(), h})
			f.removed++
		}
		if e.GetCleared() != nil {
			maps.DeleteFunc(f.held, func(b block, _ bool) bool { return b.rank == batch.GetDpRank() })
		}
	}
}

// lastBlock is the last full block of what a call has computed.
func lastBlock(a answer) string {
	all := join(a.prompt, a.output[:len(a.output)-1])
	end := len(all) / blockTokens * blockTokens
	return fmt.Sprint(all[end-blockTokens : end])
}

// rankOf returns the rank that stored the last block of a call, false if none has yet.
func (f *follower) rankOf(a answer) (int32, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rank, ok := f.stored[lastBlock(a)]
	return rank, ok
}

// blocks returns how many blocks the ranks hold, and how many they have removed.
func (f *follower) blocks() (held, removed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held), f.removed
}

// fleetFile writes a fleet file with a replica for each engine, and returns its target. attributes are those of an
// engine beside id and address.
func fleetFile(t testing.TB, engines []*engine, attributes func(i int, e *engine) string) string {
	t.Helper()
	var fleet strings.Builder
	fleet.WriteString("replicas:\n")
	for i, e := range engines {
		fmt.Fprintf(&fleet, "- {id: %q, address: %q, %s}\n", e.addr, e.addr, attributes(i, e))
	}
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	require.NoError(t, os.WriteFile(path, []byte(fleet.String()), 0o600))
	return "warmpath-file://" + path
}
