package chaos

import (
	"context"
	"net"
	"time"

	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
)

// Spec is what an engine is to be like.
type Spec struct {
	// Preset, KVTokens, Speed and MaxOngoing are as in grpcserver.Config.
	Preset     string
	KVTokens   int
	Speed      float64
	MaxOngoing int
	// KVEvents lets it publish its KV events through gRPC.
	KVEvents bool
	// Grace is how long calls under way may take after a Stop; 0 cuts them at once.
	Grace time.Duration
}

// Engine is one engine that runs. One goroutine uses it.
type Engine interface {
	// Addr is where it listens.
	Addr() string
	// Stop asks it to end as SIGTERM does, and waits until it has.
	Stop()
	// Kill ends it as SIGKILL does.
	Kill()
	// Pause stops it as SIGSTOP does, until Resume; it returns false where that cannot be done.
	Pause() bool
	Resume()
}

// Launcher starts an engine at a free port of loopback.
type Launcher func(context.Context, Spec) (Engine, error)

// InProcess starts an engine in this process.
func InProcess(ctx context.Context, spec Spec) (Engine, error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s, err := Serve(lis, spec)
	if err != nil {
		return nil, err
	}
	return &inProcess{s, spec.Grace}, nil
}

// Serve starts the engine that a Spec describes.
func Serve(lis net.Listener, spec Spec) (*grpcserver.Server, error) {
	c := grpcserver.Config{Preset: spec.Preset, KVTokens: spec.KVTokens, Speed: spec.Speed, MaxOngoing: spec.MaxOngoing}
	if spec.KVEvents {
		c.KVEvents = kvpublish.NewLog(0)
	}
	return grpcserver.Start(lis, c)
}

type inProcess struct {
	server *grpcserver.Server
	grace  time.Duration
}

func (e *inProcess) Addr() string { return e.server.Addr().String() }

func (e *inProcess) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), e.grace)
	defer cancel()
	e.server.Stop(ctx)
}

func (e *inProcess) Kill()       { e.server.Kill() }
func (e *inProcess) Pause() bool { return false }
func (e *inProcess) Resume()     {}
