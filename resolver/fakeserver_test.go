package resolver_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/internal/freeport"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

type (
	answer  = warmpathv1.WatchReplicasResponse
	watcher = grpc.BidiStreamingServer[warmpathv1.WatchReplicasRequest, answer]
)

// lookaside is a look-aside server that a test controls.
type lookaside struct {
	warmpathv1.UnimplementedRoutingServiceServer
	address string
	server  *grpc.Server

	starts  chan *warmpathv1.WatchStart
	reports chan *warmpathv1.ReservationReport

	mu      sync.Mutex // guards what follows
	first   func(*warmpathv1.WatchStart) *answer
	streams map[chan *answer]bool
	frozen  chan struct{} // closed when it thaws; nil = it is not frozen
	choose  func(*warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse
	lives   chan *warmpathv1.LifeReport
}

// startServer serves a look-aside server at an address, "" for a new one, which is free again once the server is killed.
func startServer(t *testing.T, address string, first func(*warmpathv1.WatchStart) *answer) *lookaside {
	t.Helper()
	if address == "" {
		address = deadAddress(t)
	}
	var l net.Listener
	require.Eventually(t, func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	}, time.Minute, time.Millisecond)
	s := &lookaside{
		address: l.Addr().String(),
		server:  grpc.NewServer(),
		starts:  make(chan *warmpathv1.WatchStart, 1000),
		reports: make(chan *warmpathv1.ReservationReport, 10000),
		lives:   make(chan *warmpathv1.LifeReport, 10000),
		first:   first,
		streams: make(map[chan *answer]bool),
	}
	warmpathv1.RegisterRoutingServiceServer(s.server, s)
	go func() { _ = s.server.Serve(l) }()
	t.Cleanup(s.kill)
	return s
}

// kill ends the server as a crash would.
func (s *lookaside) kill() {
	s.thaw()
	s.server.Stop()
}

// WatchReplicas implements the service.
func (s *lookaside) WatchReplicas(stream watcher) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	s.hold()
	s.starts <- m.GetStart()
	messages := make(chan *answer, 100)
	s.mu.Lock()
	s.streams[messages] = true
	messages <- s.first(m.GetStart())
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, messages)
		s.mu.Unlock()
	}()
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if r := m.GetReservations(); r != nil {
				s.reports <- r
			}
		}
	}()
	alive := time.NewTicker(50 * time.Millisecond)
	defer alive.Stop()
	for {
		next := &answer{}
		select {
		case <-stream.Context().Done():
			return nil
		case next = <-messages:
		case <-alive.C:
		}
		s.hold()
		if err := stream.Send(next); err != nil {
			return err
		}
	}
}

// hold waits while the server is frozen.
func (s *lookaside) hold() {
	s.mu.Lock()
	frozen := s.frozen
	s.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (s *lookaside) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = make(chan struct{})
}

func (s *lookaside) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		close(s.frozen)
		s.frozen = nil
	}
}

// send sends a message to all watchers.
func (s *lookaside) send(m *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.streams {
		c <- m
	}
}

// started waits for the next watch.
func (s *lookaside) started(t *testing.T) *warmpathv1.WatchStart {
	t.Helper()
	select {
	case start := <-s.starts:
		return start
	case <-time.After(20 * time.Second):
		require.Fail(t, "no watch")
		return nil
	}
}

// fleetOf is a snapshot of replicas, numbered in their order.
func fleetOf(addresses ...string) *warmpathv1.FleetUpdate {
	u := &warmpathv1.FleetUpdate{Version: 1, Snapshot: true}
	for i, a := range addresses {
		u.Replicas = append(u.Replicas, &warmpathv1.Replica{Number: uint32(i + 1), Address: a})
	}
	return u
}

// always greets every watch with the same fleet, with an incarnation of its own.
func always(incarnation string, addresses ...string) func(*warmpathv1.WatchStart) *answer {
	return func(*warmpathv1.WatchStart) *answer {
		return &answer{Incarnation: incarnation, Fleet: fleetOf(addresses...)}
	}
}

// serviceConfig is a pushed config with a policy.
func serviceConfig(version uint64, policy string) *warmpathv1.ConfigUpdate {
	return &warmpathv1.ConfigUpdate{Version: version, ServiceConfig: fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{%q:{}}}}]}`, policy)}
}

// deadAddress returns an address without a listener.
func deadAddress(t *testing.T) string { return fmt.Sprint("127.0.0.1:", freeport.Find(1)[0]) }

func serveReplicas(t *testing.T, n int) (rs []*replica, addresses []string) {
	for range n {
		r := serve(t, "127.0.0.1", insecure.NewCredentials())
		rs = append(rs, r)
		addresses = append(addresses, r.address)
	}
	return rs, addresses
}
