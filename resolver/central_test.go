package resolver_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// ChooseReplicas implements the service with choose; a server without it is an older one.
func (s *lookaside) ChooseReplicas(stream grpc.BidiStreamingServer[warmpathv1.ChooseReplicasRequest, warmpathv1.ChooseReplicasResponse]) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		s.hold()
		for _, life := range m.GetLives() {
			s.lives <- life
		}
		s.mu.Lock()
		choose := s.choose
		s.mu.Unlock()
		if choose == nil {
			return status.Error(codes.Unimplemented, "an older server")
		}
		if m.GetChoose() == nil {
			continue
		}
		if a := choose(m); a != nil {
			a.Number = m.GetNumber()
			if err := stream.Send(a); err != nil {
				return err
			}
		}
	}
}

func (s *lookaside) chooses(f func(*warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.choose = f
}

// to returns an answer that names a replica.
func to(id string, reservation string) *warmpathv1.ChooseReplicasResponse {
	return &warmpathv1.ChooseReplicasResponse{Result: &warmpathv1.ChooseReplicasResponse_Chosen{Chosen: &warmpathv1.ChooseReplicaResponse{
		Replica: &warmpathv1.ChosenReplica{Id: id}, Decision: &warmpathv1.Decision{Reason: "ring", Place: -1},
		Reservation: &warmpathv1.Reservation{Id: reservation, LeaseMs: 60_000},
	}}}
}

// central greets every watch with a fleet and a config in mode central.
func central(incarnation, more string, addresses ...string) func(*warmpathv1.WatchStart) *answer {
	return func(*warmpathv1.WatchStart) *answer {
		config := fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}},"mode":"central%s}}]}`, more)
		return &answer{
			Incarnation: incarnation, Fleet: fleetOf(addresses...),
			Config: &warmpathv1.ConfigUpdate{Version: 1, ServiceConfig: config},
		}
	}
}

// called makes a call without waiting, and returns its decision.
func called(t *testing.T, cc *grpc.ClientConn) (d client.Decision, err error) {
	t.Helper()
	_, err = healthpb.NewHealthClient(cc).Check(client.WithDecision(t.Context(), &d), &healthpb.HealthCheckRequest{})
	return d, err
}

// until makes calls, none of which may fail, until one has this reason.
func until(t *testing.T, cc *grpc.ClientConn, reason string) client.Decision {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		d, err := called(t, cc)
		require.NoError(t, err)
		if string(d.Reason) == reason {
			return d
		}
		require.True(t, time.Now().Before(end), "still %s", d.Reason)
	}
}

// released waits until all these reservations are released.
func (s *lookaside) released(t *testing.T, all map[string]bool) {
	t.Helper()
	for len(all) > 0 {
		select {
		case life := <-s.lives:
			if life.GetStage() == warmpathv1.LifeStage_LIFE_STAGE_RELEASED {
				require.True(t, all[life.GetReservation()], "%s was released twice, or never made", life.GetReservation())
				delete(all, life.GetReservation())
			}
		case <-time.After(20 * time.Second):
			require.Failf(t, "not released", "%v", all)
		}
	}
}

func TestCentralServerFails(t *testing.T) {
	_, at := serveReplicas(t, 2)
	s := startServer(t, "", central("a", `"`, at...))
	first := func(m *warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse {
		return to(at[0], fmt.Sprint("#", m.GetNumber()))
	}
	s.chooses(first)
	cc := watching(t, "warmpath://"+s.address+"/chat")
	d := until(t, cc, "central")
	require.Equal(t, at[0], d.Replica)
	require.EqualValues(t, "ring", d.Rule)

	s.freeze()
	d = until(t, cc, "fallback_local")
	require.EqualValues(t, "round_robin", d.Rule)
	for range 50 {
		until(t, cc, "fallback_local")
	}
	s.thaw()
	until(t, cc, "central")

	s.chooses(func(*warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse { return to("unknown", "#n") })
	for range 20 {
		until(t, cc, "fallback_local")
	}
	s.chooses(func(*warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse {
		return &warmpathv1.ChooseReplicasResponse{Result: &warmpathv1.ChooseReplicasResponse_Failure{
			Failure: &warmpathv1.Failure{Code: int32(codes.NotFound), Message: "empty"},
		}}
	})
	for range 20 {
		until(t, cc, "fallback_local")
	}
	s.chooses(func(*warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse { return nil }) // answers no pick
	for range 20 {
		until(t, cc, "fallback_local")
	}
	s.chooses(first)
	until(t, cc, "central")

	s.kill()
	for range 50 {
		until(t, cc, "fallback_local")
	}
	s = startServer(t, s.address, central("b", `"`, at...))
	until(t, cc, "fallback_local") // an older server
	s.kill()
	s = startServer(t, s.address, central("c", `"`, at...))
	s.chooses(first)
	until(t, cc, "central")
}

// A reservation whose answer is late or unusable is released; every reservation is released exactly once.
func TestReservationsAreReleased(t *testing.T) {
	_, at := serveReplicas(t, 2)
	s := startServer(t, "", central("a", `"`, at...))
	made := make(chan string, 1000)
	n := 0
	s.chooses(func(m *warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse {
		n++
		id := fmt.Sprint("#", n)
		made <- id
		if n%3 == 0 {
			return to("unknown", id)
		}
		return to(at[n%2], id)
	})
	cc := watching(t, "warmpath://"+s.address+"/")
	until(t, cc, "central")
	for range 30 {
		_, err := called(t, cc)
		require.NoError(t, err)
	}
	s.freeze()
	until(t, cc, "fallback_local")
	s.thaw()
	until(t, cc, "central")
	// No more are made: the stream of picks has no request left.
	all := make(map[string]bool)
	for len(made) > 0 {
		all[<-made] = true
	}
	require.Greater(t, len(all), 30)
	s.released(t, all)
}

func TestCentralFailsClosed(t *testing.T) {
	_, at := serveReplicas(t, 2)
	s := startServer(t, "", central("a", `_only"`, at...))
	s.chooses(func(*warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse { return to(at[1], "#1") })
	cc := watching(t, "warmpath://"+s.address+"/")
	eventually := func(what string, ok func(d client.Decision, err error) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(called(t, cc)); {
			require.True(t, time.Now().Before(end), what)
		}
	}
	eventually("the server decides", func(d client.Decision, err error) bool { return err == nil && d.Reason == "central" })
	s.kill()
	eventually("calls fail", func(d client.Decision, err error) bool {
		if err == nil {
			require.EqualValues(t, "central", d.Reason)
		}
		return status.Code(err) == codes.Unavailable
	})
	_, err := called(t, cc)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "central_only")
	s = startServer(t, s.address, central("b", `"`, at...))
	s.started(t)
	eventually("the new config is in force", func(d client.Decision, err error) bool {
		return err == nil && d.Reason == "fallback_local"
	})
}

// With central_only, the client picks again where the server names an unreachable replica.
func TestCentralNamesAnUnreachableReplica(t *testing.T) {
	_, live := serveReplicas(t, 1)
	at := append([]string{deadAddress(t), deadAddress(t), deadAddress(t), deadAddress(t)}, live...)
	s := startServer(t, "", central("a", `_only","central_deadline":"10s"`, at...))
	made := make(chan string, 10_000)
	n := 0
	s.chooses(func(m *warmpathv1.ChooseReplicasRequest) *warmpathv1.ChooseReplicasResponse {
		n++
		id := fmt.Sprint("#", n)
		i := slices.IndexFunc(at, func(a string) bool { return !slices.Contains(m.GetChoose().GetExcluded(), a) })
		if i < 0 {
			return nil
		}
		made <- id
		return to(at[i], id)
	})
	cc := watching(t, "warmpath://"+s.address+"/")
	for end := time.Now().Add(20 * time.Second); ; { // the stream of picks is open
		if d, err := called(t, cc); err == nil && d.Reason == "central" {
			break
		}
		require.True(t, time.Now().Before(end), "the server decides")
	}
	for range 20 {
		d, err := called(t, cc)
		require.NoError(t, err)
		require.EqualValues(t, "central", d.Reason)
		require.Equal(t, live[0], d.Replica)
	}
	all := make(map[string]bool)
	for len(made) > 0 {
		all[<-made] = true
	}
	s.released(t, all)
}

// A server may be newer than its clients: they skip unknown fields of its config, and use the rest.
func TestNewerServer(t *testing.T) {
	_, at := serveReplicas(t, 2)
	s := startServer(t, "", func(*warmpathv1.WatchStart) *answer {
		return &answer{Incarnation: "a", Fleet: fleetOf(at...), Config: &warmpathv1.ConfigUpdate{Version: 1, ServiceConfig: `{"loadBalancingConfig":[{"warmpath":{
			"policy":{"consistent_hash":{}},"mode":"quantum","ejection":{"failures":5,"psychic":true},"hyper":{"drive":1}}}]}`}}
	})
	d := until(t, watching(t, "warmpath://"+s.address+"/"), "no_key")
	require.Equal(t, "consistent_hash", d.Policy)
}
