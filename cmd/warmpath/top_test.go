package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestTopOnce(t *testing.T) {
	at, _ := servingWith(t, "--config", file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments: {chat: {policy: {consistent_hash: {}}, replicas: [{id: a, address: 'h:1', max_ongoing_requests: 9}, {id: b, address: 'h:2', draining: true}]}}"))
	for range 3 {
		code, _, wrong := command(t, "choose", "--server", at, "--session", "s")
		require.Zero(t, code, wrong)
	}
	code, printed, wrong := command(t, "top", "--server", at, "--once")
	require.Zero(t, code, wrong)
	require.Contains(t, printed, "deployment chat  policy consistent_hash")
	require.Regexp(t, `decisions  ring(_fallback)? 3\n`, printed)
	require.Regexp(t, `(?m)^a +ready +\d+ of 9 +0 +- +- +- +- +- +h:1`, printed)
	require.Regexp(t, `(?m)^b +draining `, printed)

	code, printed, wrong = command(t, "top", "--server", at, "--once", "--json", "--deployment", "chat")
	require.Zero(t, code, wrong)
	var got struct {
		Deployments []struct {
			Replicas  []struct{ ID, State string }
			Decisions []struct{ Count string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(printed), &got))
	require.Equal(t, "3", got.Deployments[0].Decisions[0].Count)
	require.Len(t, got.Deployments[0].Replicas, 2)

	code, _, wrong = command(t, "top", "--server", at, "--once", "--deployment", "other")
	require.Equal(t, exitFailed, code)
	require.Contains(t, wrong, "NotFound")
}

// A replica that cannot be reached is not shown as ready, and the reason is shown.
func TestTopShowsReplicasThatDoNotServe(t *testing.T) {
	at, _ := servingWith(t, "--config", file(t, "server.yaml",
		"listen: 127.0.0.1:0\ndeployments: {chat: {health_check: 100ms, replicas: [{id: a, address: '127.0.0.1:1'}]}}"))
	shown := regexp.MustCompile(`(?m)^problem    a: not_serving for \d+s \(check\): Unavailable: .*refused(.*\n)+a +not_serving `)
	var printed string
	require.Eventually(t, func() bool {
		_, printed, _ = command(t, "top", "--server", at, "--once")
		return shown.MatchString(printed)
	}, 20*time.Second, 5*time.Millisecond, "%s", &printed)
}

// statuses answers with one status after the other, then fails.
type statuses struct {
	warmpathv1.StatusServiceClient
	answers []*warmpathv1.GetStatusResponse
	end     context.CancelFunc
	asked   int
}

func (s *statuses) GetStatus(context.Context, *warmpathv1.GetStatusRequest, ...grpc.CallOption) (*warmpathv1.GetStatusResponse, error) {
	s.asked++
	if s.asked > len(s.answers)+1 {
		s.end()
	}
	if s.asked > len(s.answers) {
		return nil, status.Error(codes.Unavailable, "gone\x1b[31m")
	}
	return s.answers[s.asked-1], nil
}

// Issue 12.48: orphans are among the figures of a replica.
// top continues when the server is gone. Rates use two statuses of the same server only. Text from a server cannot
// control the terminal.
func TestTopLive(t *testing.T) {
	look := func(life string, ms, count uint64) *warmpathv1.GetStatusResponse {
		return &warmpathv1.GetStatusResponse{Incarnation: life, UptimeMs: ms, Deployments: []*warmpathv1.DeploymentStatus{{
			Name: "chat", Policy: "p", Decisions: []*warmpathv1.DecisionCount{{Policy: "p", Reason: "ring", Count: count}},
			CachedTokens: &warmpathv1.CachedTokens{Prompt: 1000, Predicted: 600, Measured: 555},
			Shadow:       &warmpathv1.ShadowStatus{Policy: "evil\x1b", Decisions: 30, Differing: 3},
			Replicas: []*warmpathv1.ReplicaStatus{{
				Id: "evil\x1b[2J\n", State: "ready", Role: "prefill", Stale: true, KvTokens: 1000,
				Events: &warmpathv1.EventStatus{Connected: 1, Streams: 2, Blocks: 10, BlockTokens: 16, Gaps: 3, Orphaned: 7, LagUs: 1500, Problem: "events"},
				Health: []*warmpathv1.HealthReport{
					{By: "calls", State: "ejected", ForMs: 65_400, Why: "calls fail", Principals: 2}, {By: "check", State: "not_serving", Why: "NOT_SERVING"},
				},
				PollProblem: "polls",
			}},
		}}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	tp := top{server: "s", interval: time.Millisecond, timeout: time.Minute}
	fake := &statuses{answers: []*warmpathv1.GetStatusResponse{look("x", 1000, 10), look("x", 3000, 30), look("y", 500, 4)}, end: cancel}
	require.NoError(t, tp.run(ctx, fake, &out, nil))
	text := out.String()
	require.Contains(t, text, "ring 30 (10/s)")
	require.Contains(t, text, "ring 4\n", "another life: no rate")
	require.Contains(t, text, "asking again every 1ms")
	require.Contains(t, text, "cached     55.5 % of the reported prompt tokens, 60.0 % predicted\n")
	require.Contains(t, text, "shadow     evil?: 3 of 30 decisions elsewhere\n")
	require.Regexp(t, `160 of 1000 +1 of 2 +3 +7 +1.5ms`, text)
	require.Contains(t, text, "ready, stale, prefill")
	require.Contains(t, text, ": ejected for 1m5s (2 principals): calls fail; not_serving (check): NOT_SERVING; events; polls\n")
	require.NotContains(t, text, "\x1b")

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	var wrong bytes.Buffer
	out.Reset()
	tp.json = true
	fake = &statuses{answers: []*warmpathv1.GetStatusResponse{look("x", 1000, 10), look("x", 3000, 30)}, end: cancel}
	require.NoError(t, tp.run(ctx, fake, &out, &wrong))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		require.True(t, json.Valid([]byte(line)), "%s", line)
	}
	require.Contains(t, wrong.String(), "asking again every 1ms")
}

// A server of a cluster shows the others, and whether it is cut off.
func TestTopShowsTheCluster(t *testing.T) {
	line := func(c *warmpathv1.ClusterStatus) string {
		now := &warmpathv1.GetStatusResponse{UptimeMs: 3000, Deployments: []*warmpathv1.DeploymentStatus{{Name: "chat", Cluster: c}}}
		before := &warmpathv1.GetStatusResponse{UptimeMs: 1000, Deployments: []*warmpathv1.DeploymentStatus{
			{Name: "chat", Cluster: &warmpathv1.ClusterStatus{SentBytes: 100}},
		}}
		var out bytes.Buffer
		require.NoError(t, printStatus(&out, now, before))
		return regexp.MustCompile(`(?m)^cluster .*`).FindString(out.String())
	}
	require.Equal(t, "cluster    two in sync, three catches up, four? has another config; 300 B (100/s) sent, 2.0 KiB (1024/s) received, 3 gaps",
		line(&warmpathv1.ClusterStatus{Connected: true, SentBytes: 300, ReceivedBytes: 2048, Gaps: 3, Peers: []*warmpathv1.PeerStatus{
			{Origin: "two", InSync: true, SameConfig: true}, {Origin: "three"}, {Origin: "four\x1b", InSync: true},
		}}))
	require.Equal(t, "cluster    no other server; 100 B (0/s) sent, 0 B (0/s) received, 0 gaps",
		line(&warmpathv1.ClusterStatus{Connected: true, SentBytes: 100}))
	require.Contains(t, line(new(warmpathv1.ClusterStatus)), "cluster    cut off; ")
	require.Empty(t, line(nil), "it is alone")
}

func TestPageFitsTheTerminal(t *testing.T) {
	text := inPlace("one\ntwo\nthree is too long\nfour\n", 7, 3)
	require.Equal(t, home+"one"+clearLine+"\r\ntwo"+clearLine+"\r\n… 2 mor"+clearLine+clearRest, text)
	require.Equal(t, 2, strings.Count(text, "\n"))
}
