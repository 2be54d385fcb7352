package server

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/internal/cluster"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const spyToken = "spy-0123456789abc"

// watched is a server whose only replica has a prompt of 1024 tokens in its cache: the one of the later requests, or
// another. With several replicas the pick itself would differ.
func watched(t *testing.T, policy string, warm bool) *fixture {
	t.Helper()
	f := start(t, `
load_interval: 10s
principals:
- {name: ops, token: trusted-0123456789, trusted: true}
- {name: team, token: only-chat-0123456789}
- {name: spy, token: spy-0123456789abc}
deployments: {chat: {policy: `+policy+`, replicas: [{id: a, address: "10.0.0.1:1"}]}}
`)
	before := proto64(t)
	if warm {
		before = &warmpathv1.ChooseReplicaRequest{Key: hashed(64, 16, 0)}
	}
	before.Mode = count
	_, err := f.with(t, trustedToken).ChooseReplica(soon(t), before)
	require.NoError(t, err)
	f.clock.advance(10e9) // it has expired
	f.tick("chat")
	return f
}

// seen is all that a caller receives while another caller, perhaps its accomplice, sends the prompt in every mode.
func seen(t *testing.T, f *fixture, token string) (all []string) {
	t.Helper()
	conn := f.as(t, insecure.NewCredentials(), token)
	pb := warmpathv1.NewRoutingServiceClient(conn)
	p, err := f.authenticator.authenticate(asToken(token))
	require.NoError(t, err)
	note := func(m proto.Message) { all = append(all, strings.ReplaceAll(prototext.Format(m), "  ", " ")) }
	look := func() {
		f.tick("chat")
		w := &watcher{deployment: f.deployment("chat"), principal: p, client: new(client), load: true, index: true}
		news, _, _ := w.news() // of a watch that begins now
		for _, m := range news {
			m.Config = nil
			note(m)
		}
		a, err := warmpathv1.NewStatusServiceClient(conn).GetStatus(soon(t), new(warmpathv1.GetStatusRequest))
		require.NoError(t, err)
		a.Incarnation = ""
		note(a)
		q, err := pb.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: query, Pinned: "a"})
		require.NoError(t, err)
		note(q)
		f.clock.advance(500e6)
		f.tick("chat")
	}
	look()
	other := f.with(t, chatToken)
	for _, mode := range []warmpathv1.PickMode{query, count, reserve} {
		a, err := other.ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: mode, Key: hashed(64, 16, 0)})
		require.NoError(t, err)
		id := a.GetReservation().GetId()
		if token != trustedToken {
			if a.Reservation != nil {
				a.Reservation.Id = ""
			}
			note(a)
		}
		look()
		if mode == reserve {
			for _, stage := range []warmpathv1.LifeStage{prefill, released} {
				_, err = other.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{Reservation: id, Stage: stage}}})
				require.NoError(t, err)
				look()
			}
		}
		f.clock.advance(10e9)
		f.tick("chat")
		look()
	}
	return all
}

// Nothing that untrusted principals receive depends on whether a prompt was cached, also where two of them work
// together. What a trusted one receives does.
func TestMatchesAreHiddenFromTheUntrusted(t *testing.T) {
	for _, policy := range []string{"{prefix_cache_affinity: {}}", "{kv_aware: {}}"} {
		for _, token := range []string{spyToken, chatToken, trustedToken} {
			t.Run(fmt.Sprint(policy, token), func(t *testing.T) {
				warm, cold := seen(t, watched(t, policy, true), token), seen(t, watched(t, policy, false), token)
				if token == trustedToken {
					require.False(t, slices.Equal(cold, warm), "a trusted principal sees it")
					return
				}
				require.Len(t, warm, len(cold))
				for i := range cold {
					require.Equal(t, cold[i], warm[i])
				}
				require.Contains(t, strings.Join(warm, ""), "queued_tokens: 1024")
			})
		}
	}
}

// A watcher that is no longer trusted gets a snapshot of the load as it may see it, and the other way round.
func TestLoadAfterAChangeOfTrust(t *testing.T) {
	f := watched(t, "{kv_aware: {}}", true)
	d := f.deployment("chat")
	_, err := f.with(t, chatToken).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: reserve, Key: hashed(64, 16, 0)})
	require.NoError(t, err)
	f.tick("chat")
	w := &watcher{principal: f.authenticator.principals["ops"], client: new(client), load: true}
	load := func() *warmpathv1.LoadUpdate {
		d.mu.Lock()
		defer d.mu.Unlock()
		return w.loadUpdate(&d.balance, time.Duration(d.limits.Load().LoadInterval), d.now())
	}
	require.Equal(t, map[uint32]replicaLoad{1: {1, 0}}, columns(load().GetLoads()))
	require.Nil(t, load())
	w.principal = f.authenticator.principals["spy"]
	u := load()
	require.True(t, u.GetSnapshot())
	require.Equal(t, map[uint32]replicaLoad{1: {1, 1024}}, columns(u.GetLoads()))
	w.principal = f.authenticator.principals["ops"]
	require.True(t, load().GetSnapshot())
}

// The reasons of a policy that uses no prompts are shown; of other policies those that depend on the request alone.
func TestReasonsThatAreShown(t *testing.T) {
	for _, tt := range []struct {
		policy, reason, rule string
		want                 string
	}{
		{"round_robin", "round_robin", "", "round_robin,,3"},
		{"consistent_hash", "retry", "ring", "retry,ring,3"},
		{"prefix_cache_affinity", "round_robin", "", "withheld,,-1"},
		{"prefix_cache_affinity", "least_loaded", "", "withheld,,-1"},
		{"prefix_cache_affinity", "queued", "prefix_match", "queued,withheld,-1"},
		{"prefix_cache_affinity", "no_key", "", "no_key,,3"},
		{"kv_aware", "pinned", "", "pinned,,3"},
		{"mine", "least_of_two", "", "withheld,,-1"},
		{"mine", "my own", "", "withheld,,-1"},
	} {
		a := withheld(&warmpathv1.ChooseReplicaResponse{Decision: &warmpathv1.Decision{
			Policy: tt.policy, Reason: tt.reason, Rule: tt.rule, Place: 3, MatchedTokens: 7, Load: 9,
		}})
		d := a.GetDecision()
		require.Equal(t, tt.want, fmt.Sprintf("%s,%s,%d", d.GetReason(), d.GetRule(), d.GetPlace()))
		require.Zero(t, d.GetMatchedTokens())
		require.Zero(t, d.GetLoad())
	}
}

// The bytes between the servers of a cluster grow with what is cached: only trusted principals see them.
func TestBytesOfTheClusterAreWithheld(t *testing.T) {
	opened := cluster.Open
	defer func() { cluster.Open = opened }()
	cluster.Open = func(cluster.Config, *slog.Logger) (cluster.Bus, error) {
		return (&wire{ends: make(map[*wireEnd]bool)}).end(), nil
	}
	d := digestOf(chatToken)
	f := start(t, "cluster: {nats: {url: 'nats://nowhere:4222'}}\n"+strings.Replace(tenants, "b7e1aab7f76aa4d76b0de0ff2ba3d96c0b2b0e6ef1a3b5f0c9a1bb25bbec3ff2", hex.EncodeToString(d[:]), 1))
	f.tick("chat")
	sent := make(map[bool]uint64)
	for token, trusted := range map[string]bool{trustedToken: true, chatToken: false} {
		conn := f.as(t, insecure.NewCredentials(), token)
		a, err := warmpathv1.NewStatusServiceClient(conn).GetStatus(soon(t), &warmpathv1.GetStatusRequest{Deployment: "chat"})
		require.NoError(t, err)
		require.True(t, a.GetDeployments()[0].GetCluster().GetConnected())
		sent[trusted] = a.GetDeployments()[0].GetCluster().GetSentBytes()
	}
	require.Positive(t, sent[true])
	require.Zero(t, sent[false])
}
