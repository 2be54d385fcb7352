package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/internal/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/internal/lab/sim"
	"github.com/warmpath/warmpath/internal/lab/workload"
	"github.com/warmpath/warmpath/internal/lookaside"
)

// Modes of replay: where decisions are made.
const modeLocal = "local"

// maxDeadline is the longest central_deadline of a config.
const maxDeadline = 10 * time.Second

var replayModes = []string{modeLocal, policy.Broadcast, policy.InCentral}

// deploymentName is that of the one deployment of the servers that replay starts.
const deploymentName = "replay"

// modes are the flags with which replay brings its own engines and look-aside servers.
type modes struct {
	sim.Demo // where there is no target, or no trace
	names    []string
	servers  int
	deadline time.Duration
	fault    fault
}

func (m *modes) add(f *pflag.FlagSet) {
	f.StringSliceVar(&m.names, "mode", nil,
		"`where` picks are made, one after the other: local (clients that share nothing), broadcast (clients with the view "+
			"of a look-aside server), central (the server)")
	f.IntVar(&m.Replicas, "engines", 8, "without --target: `number` of simulated engines to start, anew for each run")
	f.StringVar(&m.Workload, "workload", "chat",
		"without --trace: the `workload` to generate: "+fmt.Sprint(workload.Names()))
	f.Float64Var(&m.Load, "load", 0.7, "without --trace: part of the engines' capacity to use")
	f.DurationVar(&m.Share, "duration", 30*time.Second,
		"without --trace: `time` for each run, a third of it to warm up")
	f.IntVar(&m.servers, "servers", 1, "`number` of look-aside servers to start, each a process, where a mode needs one")
	f.DurationVar(&m.deadline, "central-deadline", policy.DefaultCentralDeadline,
		"how long clients wait for a server's answer at most, in mode central")
	addEngine(f, &m.Engine.Preset, &m.Engine.KVTokens)
	m.fault.add(f)
}

func (m *modes) check(r *replay) error {
	for i, name := range m.names {
		if err := oneOf("mode", name, replayModes); err != nil {
			return err
		}
		if slices.Contains(m.names[:i], name) {
			return usagef("--mode: %s is named twice", name)
		}
	}
	err := first(
		atLeast("engines", m.Replicas, 1), atLeast("servers", m.servers, 1), positive("load", m.Load),
		oneOf("workload", m.Workload, workload.Names()), m.fault.check(m.names),
	)
	switch {
	case err != nil:
		return err
	case m.deadline <= 0 || m.deadline > maxDeadline:
		return usagef("--central-deadline: %v is not between 0s and %v", m.deadline, maxDeadline)
	case m.Share <= 0:
		return usagef("--duration: %v is not positive", m.Share)
	case len(m.names) > 0 && r.Target != "" && len(drive.Replicas(r.Target)) == 0:
		return usagef("--target: --mode needs a list of servers or a fleet file")
	}
	return checkEngine(&m.Engine)
}

// plan generates what to send.
func (m *modes) plan(ctx context.Context, r *replay) ([]workload.Request, error) {
	m.Unshared, m.Seed, m.Speed = 0.4, r.Seed, r.Speed
	p, err := m.Plan(ctx)
	if err != nil {
		return nil, err
	}
	r.WarmUp = p.WarmUp
	return p.Requests, nil
}

// A stage is what one run happens on.
type stage struct {
	options drive.Options
	servers []*drive.Process
	cables  []*drive.Cable // of the clients
	down    []func()
}

func (s *stage) close() {
	for _, f := range slices.Backward(s.down) {
		f()
	}
}

// set builds the stage of a run: engines where there is no target, and servers where the mode needs them.
func (m *modes) set(
	ctx context.Context, c *cobra.Command, r *replay, mode, name string, o drive.Options,
) (s *stage, err error) {
	s = &stage{options: o}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if r.Target == "" {
		f, err := drive.StartFleet(ctx, m.Replicas, grpcserver.Config{
			Engine: m.Engine, Speed: r.Speed, KVEvents: kvpublish.NewLog(0),
		})
		if err != nil {
			return s, err
		}
		s.down = append(s.down, f.Kill)
		s.options.Target = f.Target()
	}
	s.options.Replicas = drive.Replicas(s.options.Target)
	if mode == modeLocal {
		return s, nil
	}
	config, err := m.serverConfig(r, mode, name, s.options.Replicas)
	if err != nil {
		return s, err
	}
	return s, m.serve(ctx, c, s, config)
}

// serve starts the servers and has the clients use them.
func (m *modes) serve(ctx context.Context, c *cobra.Command, s *stage, config []byte) error {
	dir, err := os.MkdirTemp("", "warmpath-replay")
	if err != nil {
		return err
	}
	s.down = append(s.down, func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "server.yaml")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var log io.Writer = io.Discard
	if m.fault.log {
		log = c.ErrOrStderr()
	}
	addresses := make([]string, m.servers)
	for i := range addresses {
		p, err := drive.StartProcess(ctx, func(listen string) *exec.Cmd {
			serve := exec.Command(self, "serve", "--config", path, "--listen", listen)
			serve.Stderr = log
			return serve
		})
		if err != nil {
			return err
		}
		s.down = append(s.down, p.Kill)
		s.servers = append(s.servers, p)
		addresses[i] = p.Addr()
	}
	// The first is the one that clients use.
	order := lookaside.Rank(addresses, deploymentName)
	slices.SortFunc(s.servers, func(a, b *drive.Process) int {
		return slices.Index(order, a.Addr()) - slices.Index(order, b.Addr())
	})
	s.cables = make([]*drive.Cable, s.options.Clients)
	for i := range s.cables {
		s.cables[i] = new(drive.Cable)
	}
	s.options.Target = "warmpath://" + strings.Join(addresses, ",") + "/" + deploymentName
	s.options.Config = ""
	logger := slog.New(slog.NewTextHandler(log, nil))
	s.options.DialClient = func(i int) []grpc.DialOption {
		return []grpc.DialOption{
			client.WithServerDialOptions(grpc.WithContextDialer(s.cables[i].Dial)), client.WithLogger(logger.With("client", i)),
		}
	}
	return nil
}

// serverConfig is the config of the servers: load is broadcast as often as every 100 ms of the engines' time, if that
// can be.
func (m *modes) serverConfig(r *replay, mode, name string, replicas []policy.Attributes) ([]byte, error) {
	interval := max(time.Duration(float64(100*time.Millisecond)/r.Speed), 10*time.Millisecond)
	deployment := map[string]any{
		"mode": mode, "central_deadline": policy.Duration(m.deadline),
		"policy": map[string]any{name: struct{}{}}, "replicas": entries(replicas),
	}
	if r.Target == "" {
		deployment["kv_events"] = "grpc:vllm"
	}
	return json.Marshal(map[string]any{
		"load_interval": interval.String(), "deployments": map[string]any{deploymentName: deployment},
	})
}

// entries are replicas as a fleet file has them.
func entries(replicas []policy.Attributes) []map[string]any {
	all := make([]map[string]any, len(replicas))
	for i, r := range replicas {
		all[i] = map[string]any{"id": r.ID, "address": r.Address}
	}
	return all
}

// orNone are the modes, or none as the only one.
func (m *modes) orNone() []string {
	if len(m.names) == 0 {
		return []string{""}
	}
	return m.names
}
