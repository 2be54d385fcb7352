package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/lab/report"
	"github.com/warmpath/warmpath/lab/workload"
	"github.com/warmpath/warmpath/resolver"
	"github.com/warmpath/warmpath/server"
)

// modeLocal is the mode of clients that share nothing.
const modeLocal = "local"

var liveModes = []string{modeLocal, policy.Broadcast, policy.InCentral}

// dividedModes are those of a demo of prefill and decode: engines that do both, and engines with a role.
var dividedModes = []string{"together", modeApart}

const modeApart = "apart"

// maxDeadline is the longest central_deadline of a config.
const maxDeadline = 10 * time.Second

// deploymentName is that of the one deployment of the look-aside servers.
const deploymentName = "live"

// live is what demo and replay share: a workload goes through channels over real sockets, once for each policy and
// mode.
type live struct {
	drive.Options
	output   outputFlags
	policies []string
	modes    []string
	servers  int
	deadline time.Duration
	// engines is how many simulated ones start anew for each run, where there is no target.
	engines int
	engine  enginesim.Config
}

func (l *live) flags(f *pflag.FlagSet, clients int, policies []string) {
	f.IntVar(&l.Clients, "clients", clients, "`number` of channels, which share nothing")
	f.StringSliceVar(&l.policies, "policies", policies, "the `policies` to compare, one after the other")
	f.StringSliceVar(&l.modes, "mode", nil, "compare `where` picks are made, with look-aside servers: "+
		"local (clients that share nothing), broadcast (clients with the view of a server), central (the server)")
	f.IntVar(&l.servers, "servers", 1, "`number` of look-aside servers where a mode needs one; several are a cluster")
	f.DurationVar(&l.deadline, "central-deadline", policy.DefaultCentralDeadline, "longest wait in mode central")
	f.Uint64Var(&l.Seed, "seed", 1, "seed of the workload or its jitter, and of the client of each request")
	l.output.add(f)
}

func (l *live) check() error {
	if len(l.modes) > 0 {
		if err := someOf("mode", l.modes, liveModes); err != nil {
			return err
		}
	}
	if l.deadline <= 0 || l.deadline > maxDeadline {
		return usagef("--central-deadline: %v is not between 0s and %v", l.deadline, maxDeadline)
	}
	return first(atLeast("clients", l.Clients, 1), atLeast("servers", l.servers, 1),
		someOf("policies", l.policies, policy.Names()), l.output.check())
}

// measure runs the workload with each policy in each mode. Servers of a target keep their caches in between, so each
// run there gets a copy of the workload with other tokens.
func (l *live) measure(c *cobra.Command, rep *report.Report, rs []workload.Request) error {
	modes := l.modes
	if len(modes) == 0 {
		modes = []string{""}
	}
	replicas := map[string]bool{}
	lag := 0.
	for _, name := range l.policies {
		for _, mode := range modes {
			sent := rs
			if l.engines == 0 {
				sent = workload.Copy(rs, len(rep.Results))
			}
			res, n, err := l.one(c, sent, mode, name)
			if err != nil {
				return err
			}
			for id := range res.Loads {
				replicas[id] = true
			}
			rep.Replicas, lag = max(n, len(replicas)), max(lag, res.Lag.P99)
			rep.Results = append(rep.Results, *res)
		}
	}
	rep.Clients, rep.Requests, rep.Subject = l.Clients, rep.Results[0].Requests, l.subject()
	times := "as the engines report them, and the time in the channel's queue; where they report none, by the clients' clock × speed"
	if l.OwnClock {
		times = "by the clients' clock × speed"
	}
	rep.Facts = append(rep.Facts,
		report.Fact{Name: "Times", Value: times},
		report.Fact{Name: "Lag", Value: fmt.Sprintf("99 of 100 requests were sent at most %.1f ms late, which is %.0f ms of "+
			"engine time", lag, lag*l.Speed)})
	rep.CheckTimes(l.Speed)
	return nil
}

// one measures one policy in one mode, "" for channels to the replicas themselves. n is the number of replicas, 0 where
// only the resolver has it.
func (l *live) one(c *cobra.Command, rs []workload.Request, mode, name string) (res *drive.Result, n int, err error) {
	label := name
	switch {
	case mode != "" && len(l.policies) == 1:
		label = mode
	case mode != "":
		label = mode + ":" + name
	}
	p := newProgress(c.ErrOrStderr(), label, len(rs))
	o := l.Options
	o.Progress = p.show
	o.Config = fmt.Sprintf(`{"policy": {%q: {}}}`, name)
	o.Replicas = drive.Replicas(o.Target)
	if l.engines > 0 {
		stop, err := l.start(c.Context(), &o, mode)
		defer stop()
		if err != nil {
			return nil, 0, err
		}
	}
	if mode == policy.Broadcast || mode == policy.InCentral {
		stop, err := l.serve(&o, mode, name)
		defer stop()
		if err != nil {
			return nil, 0, err
		}
	}
	start := time.Now()
	samples, err := drive.Run(c.Context(), rs, o)
	if err != nil {
		return nil, 0, err
	}
	if followed := inForce(samples); mode == "" && followed != "" {
		label = followed // a server's config may name another policy than the flag
	}
	r := drive.Summarize(label, len(o.Replicas), samples, drive.Targets{})
	p.end(&r, time.Since(start))
	return &r, len(o.Replicas), nil
}

// inForce names the policies that decided, those of most requests first; "" = none did.
func inForce(samples []drive.Sample) string {
	counts := map[string]int{}
	for i := range samples {
		if name := samples[i].Policy; name != "" {
			counts[name]++
		}
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return strings.Join(names, ", then ")
}

// subject begins the report's sentence if the channels are not simply clients that share nothing.
func (l *live) subject() string {
	who := fmt.Sprintf("With %d clients", l.Clients)
	if l.Clients == 1 {
		who = "With one client"
	}
	if len(l.modes) > 0 {
		return who
	}
	// Not url.Parse: it refuses several servers.
	server, _, _ := strings.Cut(strings.TrimPrefix(l.Target, resolver.Scheme+"://"), "/")
	if server == "" || !strings.HasPrefix(l.Target, resolver.Scheme+"://") {
		return ""
	}
	return who + " of the look-aside server " + server
}

// start starts simulated engines and has the channels use them, until stop is called. Of those apart a quarter prefills.
func (l *live) start(ctx context.Context, o *drive.Options, mode string) (stop func(), err error) {
	engines, prefills := grpcserver.Config{Engine: l.engine, Speed: l.Speed}, 0
	if mode != "" {
		engines.KVEvents = kvpublish.NewLog(0)
	}
	if mode == modeApart {
		prefills = max(l.engines/4, 1)
	}
	fleet, err := drive.StartFleet(ctx, l.engines, prefills, engines)
	if err != nil {
		return func() {}, err
	}
	o.Replicas, o.Target, o.Dial = fleet.Replicas, drive.FleetScheme+":///", []grpc.DialOption{fleet.Resolver()}
	return fleet.Kill, nil
}

// serve starts look-aside servers for the replicas and has the channels use them, until stop is called.
func (l *live) serve(o *drive.Options, mode, name string) (stop func(), err error) {
	var servers []*server.Server
	endNATS := func() {}
	stop = func() {
		for _, s := range servers {
			s.Close()
		}
		endNATS()
	}
	config := l.serverConfig(mode, name, o.Replicas)
	if l.servers > 1 {
		address, end, err := startNATS()
		if err != nil {
			return stop, err
		}
		endNATS, config.Cluster.NATS = end, &cluster.NATS{URL: "nats://" + address}
	}
	ports := make([]string, l.servers)
	for i := range ports {
		s, err := server.New(config, server.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return stop, err
		}
		servers = append(servers, s)
		lis, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			return stop, err
		}
		go func() { _ = s.Serve(lis) }() // ends with Close
		_, ports[i], _ = net.SplitHostPort(lis.Addr().String())
	}
	// Clients prefer servers in an order by their addresses: with a loopback address for each client they spread.
	o.TargetOf = func(client int) string {
		host := fmt.Sprintf("127.0.%d.%d:", client/200, 1+client%200)
		return "warmpath://" + host + strings.Join(ports, ","+host) + "/" + deploymentName
	}
	o.Target, o.Config = o.TargetOf(0), ""
	return stop, nil
}

// startNATS starts a NATS on the loopback, through which several servers share their view.
func startNATS() (address string, end func(), err error) {
	dir, err := os.MkdirTemp("", "warmpath-nats-")
	if err != nil {
		return "", nil, err
	}
	n, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true,
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, err
	}
	end = func() {
		n.Shutdown()
		n.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
	go n.Start()
	if !n.ReadyForConnections(time.Minute) {
		end()
		return "", nil, errors.New("NATS does not start on the loopback")
	}
	return n.Addr().String(), end, nil
}

// serverConfig is the config of the servers. They broadcast load every 100 ms of the engines' time, at most every 10 ms.
func (l *live) serverConfig(mode, name string, replicas []policy.Attributes) *server.Config {
	var d server.Deployment
	d.Policy.Name, d.Mode, d.CentralDeadline = name, mode, policy.Duration(l.deadline)
	for _, r := range replicas {
		d.Replicas = append(d.Replicas, policy.Attributes{ID: r.ID, Address: r.Address})
	}
	if l.engines > 0 {
		d.KVEvents = "grpc:vllm"
	}
	interval := max(time.Duration(float64(100*time.Millisecond)/l.Speed), 10*time.Millisecond)
	c := &server.Config{
		LoadInterval: policy.Duration(interval), Deployments: map[string]server.Deployment{deploymentName: d},
		AllowPlaintext: true,
	}
	return c
}
