package tests

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// A blockFleet is two engines with blocks of one size.
type blockFleet struct {
	engines []*simulated
	asked   int
}

func newBlockFleet(t *testing.T, size int) *blockFleet {
	f := new(blockFleet)
	for range 2 {
		f.engines = append(f.engines, simulateBlocks(t, "", nil, size))
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

// warm has an engine compute a new prompt, without a client.
func (f *blockFleet) warm(t *testing.T, tokens int) (prompt []uint32, replica string) {
	t.Helper()
	f.asked++
	prompt = make([]uint32, tokens)
	for i := range prompt {
		prompt[i] = uint32(10_000*f.asked + i)
	}
	at := f.asked % len(f.engines)
	require.NoError(t, f.engines[at].ask(fmt.Sprint("warm ", f.asked), prompt, 1))
	return prompt, fmt.Sprint("r", at)
}

// finds waits until a client's call for a prompt that only engines have seen goes to the engine that has it, with so
// many matched tokens.
func (f *blockFleet) finds(t *testing.T, cc *grpc.ClientConn, reason string, tokens, matched int) {
	t.Helper()
	var d client.Decision
	var at string
	eventually(t, "a warm engine is found", func() bool {
		var prompt []uint32
		prompt, at = f.warm(t, tokens)
		d = f.ask(t, cc, prompt)
		return d.Replica == at && string(d.Reason) == reason && d.MatchedTokens == matched
	})
}

func (f *blockFleet) ask(t *testing.T, cc *grpc.ClientConn, prompt []uint32) (d client.Decision) {
	t.Helper()
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(client.WithDecision(deadline(t), &d), &enginepb.GenerateRequest{
		Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: prompt}},
	})
	for err == nil {
		_, err = stream.Recv()
	}
	require.True(t, errors.Is(err, io.EOF), "%v", err)
	return d
}

// A client that follows the engines itself matches their blocks, whatever their size: that of a superblock, too.
func TestBlockSizesOfEngines(t *testing.T) {
	for size, matched := range map[int]int{32: 1088, 512: 1024, 528: 1056} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f, path := newBlockFleet(t, size), filepath.Join(t.TempDir(), "fleet.yaml")
			require.NoError(t, os.WriteFile(path, []byte("replicas:"+f.replicas()), 0o600))
			f.finds(t, dial(t, "warmpath-file://"+path), "prefix_match", 1100, matched)
		})
	}
}
