package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/examples/stubs/fake"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/sharedstore"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server"
)

// The policy keeps the rules of every policy, with a store and without.
func TestConform(t *testing.T) {
	for name, store := range map[string]policy.Store{"store": sharedstore.NewMemory(time.Now), "none": nil} {
		t.Run(name, func(t *testing.T) {
			policytest.Conform(t, func() policy.Policy { return (&Sessions{store: store, ttl: time.Minute}).Policy() })
		})
	}
}

// A session stays on the replica that the first of two clients chose, whatever the loads. It moves for both when that
// replica is gone.
func TestClientsAgree(t *testing.T) {
	store := sharedstore.NewMemory(time.Now)
	var clients [2]*router.Router
	for i := range clients {
		clients[i] = policytest.NewRouter(t, (&Sessions{store: store, ttl: time.Minute}).Policy(), policytest.Replicas("a", "b", "c"))
	}
	first := policytest.Pick(t, clients[0], policytest.Session("anna")).Decision
	require.Equal(t, reasonShared, first.Reason)
	policytest.Fill(t, clients[1], first.Replica.ID, 5)
	require.Equal(t, first.Replica.ID, policytest.Route(t, clients[1], policytest.Session("anna")))

	var left []string
	for _, id := range []string{"a", "b", "c"} {
		if id != first.Replica.ID {
			left = append(left, id)
		}
	}
	for _, r := range clients {
		policytest.SetFleet(r, policytest.Replicas(left...))
	}
	moved := policytest.Route(t, clients[1], policytest.Session("anna"))
	require.Contains(t, left, moved)
	require.Equal(t, moved, policytest.Route(t, clients[0], policytest.Session("anna")))
}

// Two programs and the look-aside server agree on every session. The server runs its own copy of the policy, with the
// store in its process.
func TestProgramsAndServerAgree(t *testing.T) {
	var fleet, targets []string
	for range 3 {
		s, err := fake.Start()
		require.NoError(t, err)
		t.Cleanup(s.Stop)
		fleet = append(fleet, fmt.Sprintf("{id: %q, address: %q}", s.Addr(), s.Addr()))
		targets = append(targets, s.Addr())
	}
	c, err := server.ParseConfig([]byte("deployments: {chat: {policy: {shared_sessions: {}}, replicas: [" + strings.Join(fleet, ", ") + "]}}"))
	require.NoError(t, err)
	s, err := server.New(c, server.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() { s.Close(); require.NoError(t, <-served) })
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pb := warmpathv1.NewRoutingServiceClient(conn)
	ask := func(session string) *warmpathv1.ChooseReplicaResponse {
		a, err := pb.ChooseReplica(ctx, &warmpathv1.ChooseReplicaRequest{Key: &warmpathv1.RequestKey{Session: session}})
		require.NoError(t, err)
		require.Equal(t, string(reasonShared), a.GetDecision().GetReason())
		return a
	}
	anna := ask("anna").GetReplica().GetId() // the server is the first to place this session
	program := func() (output string) {
		for ctx.Err() == nil {
			var out strings.Builder
			require.NoError(t, run(ctx, &out, lis.Addr().String(), "warmpath:///"+strings.Join(targets, ",")))
			if output = out.String(); !strings.Contains(output, string(policy.ReasonLeastLoaded)) {
				break // otherwise the program was faster than its connections
			}
		}
		return output
	}
	output := program()
	require.Equal(t, output, program())
	require.Contains(t, output, "anna: "+anna+" ")
	for line := range strings.Lines(output) {
		var session, replica, reason string
		_, err := fmt.Sscanf(strings.ReplaceAll(line, ": ", " "), "%s %s %s", &session, &replica, &reason)
		require.NoError(t, err)
		require.Equal(t, replica, ask(session).GetReplica().GetId(), session)
	}
}
