package endpoint

import (
	"context"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A Chooser picks replicas: the look-aside server. Its errors are gRPC statuses.
type Chooser interface {
	ChooseReplica(context.Context, *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error)
}

// A Host is a look-aside server for a front end that this module does not link.
type Host interface {
	Chooser
	ReportLife(context.Context, *warmpathv1.ReportLifeRequest) (*warmpathv1.ReportLifeResponse, error)
	// Unseen makes a reservation a pick of mode count: what becomes of its request is not seen.
	Unseen(reservation string)
	// ServerOptions are those of the server's own gRPC server, with its TLS, principals and limits.
	ServerOptions() []grpc.ServerOption
	// Bounded is the listener with the server's bound on connections.
	Bounded(net.Listener) net.Listener
	// Health is the server's health service, in which each further name stands for a deployment, or with "" for the
	// whole server.
	Health(names map[string]string) healthpb.HealthServer
	// Services is where services are registered that the server's own gRPC server has too, for the same principals,
	// before it serves. Their streams end before Shutdown, or are cut off.
	Services() grpc.ServiceRegistrar
	GetStatus(context.Context, *warmpathv1.GetStatusRequest) (*warmpathv1.GetStatusResponse, error)
	// Deployments are the names of those that the caller may use, in order.
	Deployments(context.Context) []string
	Reader
}

// A Reader knows how requests of its deployments are read.
type Reader interface {
	// Reading is that of a deployment, "" = the model's, or the only one; without one it is that of a config without
	// fields.
	Reading(ctx context.Context, deployment, model string) Reading
}

// A Reading is how requests of a deployment are read.
type Reading struct {
	Sessions *requestkey.SessionKeys
	// Route has these keys, and x-session-id behind them: HAProxy and scripts send that whatever the client's header is.
	Route    *requestkey.SessionKeys
	Dialects *requestkey.Table
}

// HeaderSession has the session of a request on [Reading.Route].
const HeaderSession = "x-session-id"

// NewReading returns that of a config.
func NewReading(c policy.Config) (r Reading, err error) {
	all, err := requestkey.ParseDialects(c.Dialects)
	if err != nil {
		return r, fmt.Errorf("dialects: %w", err)
	}
	if r.Dialects, err = requestkey.NewTable(all...); err != nil {
		return r, err
	}
	r.Sessions, r.Route = new(requestkey.SessionKeys), new(requestkey.SessionKeys)
	if c.SessionKeys == nil || len(c.SessionKeys) > 0 { // else there are none
		r.Sessions = requestkey.NewSessionKeys(c.SessionKeys...)
		r.Route = requestkey.NewSessionKeys(append(slices.Clip(c.WithDefaults().SessionKeys), HeaderSession)...)
	}
	return r, err
}

// Of returns the host that a *server.Server is. Package server sets it when it is linked.
var Of func(server any) Host
