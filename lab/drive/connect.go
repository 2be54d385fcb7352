package drive

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/target"
	"github.com/warmpath/warmpath/resolver"
)

// Waiting for connections.
const (
	defaultConnect = 10 * time.Second
	askEvery       = 10 * time.Millisecond
)

// Replicas are the replicas that a dial target names; none where only its resolver has them.
func Replicas(dialled string) []policy.Attributes {
	if list, ok := strings.CutPrefix(dialled, resolver.Scheme+":///"); ok {
		if replicas, err := fleet.ParseList(list); err == nil {
			return replicas
		}
	}
	if path, ok := strings.CutPrefix(dialled, target.FileScheme+":"); ok {
		if replicas, err := fleetfile.Load(filepath.Clean(strings.TrimPrefix(path, "//"))); err == nil {
			return replicas
		}
	}
	return nil
}

// dial makes the channels and waits until each has a connection, and then for the others: with few of them a policy
// would begin with other choices than it makes later. A replica that does not answer in time is left out.
func dial(ctx context.Context, o *Options) (channels []*grpc.ClientConn, err error) {
	options := append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, o.Dial...)
	if o.Config != "" {
		options = append(options, client.WithConfig(o.Config))
	}
	for i := range o.Clients {
		target := o.Target
		if o.TargetOf != nil {
			target = o.TargetOf(i)
		}
		cc, err := client.New(target, options...)
		if err != nil {
			return channels, err
		}
		channels = append(channels, cc)
		cc.Connect()
	}
	within, cancel := context.WithTimeout(ctx, o.Connect)
	defer cancel()
	for _, cc := range channels {
		for s := cc.GetState(); s != connectivity.Ready; s = cc.GetState() {
			if s == connectivity.Idle {
				cc.Connect()
			}
			if !cc.WaitForStateChange(within, s) {
				if ctx.Err() != nil {
					return channels, ctx.Err()
				}
				return channels, fmt.Errorf("%w at %s within %v", ErrUnreachable, o.Target, o.Connect)
			}
		}
	}
	replicas := o.Replicas
	if replicas == nil {
		replicas = Replicas(o.Target)
	}
	ids := make([]string, len(replicas))
	for i, r := range replicas {
		ids[i] = r.ID
	}
	_ = Reach(within, channels, ids)
	return channels, ctx.Err()
}

// Reach waits until every channel is connected to every one of these replicas. Any answer to a health check that is
// pinned to the replica will do.
func Reach(ctx context.Context, channels []*grpc.ClientConn, replicas []string) error {
	var all sync.WaitGroup
	for _, cc := range channels {
		health := healthpb.NewHealthClient(cc)
		for _, id := range replicas {
			all.Go(func() {
				for pinned := client.WithPin(ctx, id); ; {
					_, err := health.Check(pinned, &healthpb.HealthCheckRequest{})
					if status.Code(err) != codes.Unavailable || pause.For(ctx, askEvery) != nil {
						return
					}
				}
			})
		}
	}
	all.Wait()
	return ctx.Err()
}
