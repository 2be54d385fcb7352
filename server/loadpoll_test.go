package server

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/router/load"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The load that an engine reports counts until it is stale, then the other sources alone. The size of its cache stays.
func TestPolledLoadExpiresAndCapacityDoesNot(t *testing.T) {
	const config = `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {}}
    load_poll: "http://HOST:1/metrics"
    replicas: [{id: a, address: "127.0.0.1:1"}, {id: b, address: "127.0.0.1:2"}]
`
	f := start(t, config)
	d := f.deployment("chat")
	poll := func(id string, l load.Report) { d.update(func(x *sources) bool { x.poll(id, l, nil); return false }) }
	f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Pinned: "a"})
	poll("a", load.Report{QueuedTokens: -1, Ongoing: 7, KVTokens: 5000})
	poll("gone", load.Report{QueuedTokens: -1, Ongoing: 7})
	f.tick("chat")
	replica := func(i int) *warmpathv1.ReplicaStatus { return f.status(t, "chat").GetReplicas()[i] }
	require.EqualValues(t, 7, replica(0).GetOngoing(), "the caller's own pick is one of them")
	require.EqualValues(t, 5000, replica(0).GetKvTokens())
	a := d.hosted.Load().router.View().ByID("a")
	others, _ := a.PeerLoad()
	require.Equal(t, 6, others)
	require.Equal(t, 5000, a.KVTokens())
	require.Zero(t, replica(1).GetOngoing())

	f.advance(10 * time.Second)
	f.tick("chat")
	require.EqualValues(t, 1, replica(0).GetOngoing())
	require.True(t, replica(0).GetStale())
	require.False(t, replica(1).GetStale(), "it has never reported")
	require.EqualValues(t, 5000, replica(0).GetKvTokens())

	poll("a", load.Report{QueuedTokens: -1, Ongoing: 2}) // without the size of its cache
	f.tick("chat")
	require.False(t, replica(0).GetStale())
	require.EqualValues(t, 2, replica(0).GetOngoing())
	require.EqualValues(t, 5000, replica(0).GetKvTokens())

	require.NoError(t, f.Update(parse(t, `
load_interval: 10s
deployments:
  chat:
    policy: {kv_aware: {}}
    replicas: [{id: a, address: "127.0.0.1:1"}]
`)))
	poll("a", load.Report{QueuedTokens: -1, Ongoing: 9}) // an answer that was under way
	f.tick("chat")
	require.EqualValues(t, 1, replica(0).GetOngoing())
	require.False(t, replica(0).GetStale(), "its load is not polled any more")
	require.EqualValues(t, 5000, replica(0).GetKvTokens())
}

// The count of failed polls is not reset by a reload.
func TestFailedPollsAddUp(t *testing.T) {
	text := func(poll string) string {
		return "load_interval: 10s\ndeployments: {chat: {replicas: [{id: a, address: '127.0.0.1:1'}]" + poll + "}}"
	}
	f := start(t, text(", load_poll: 'grpc:vllm'"))
	d := f.deployment("chat")
	failed := d.tally.pollsFailed.Load
	require.Eventually(t, func() bool { return failed() > 0 }, 20*time.Second, time.Millisecond)
	was := failed()
	require.NoError(t, f.Update(parse(t, text(", load_poll: 'grpc:sglang'"))))
	require.GreaterOrEqual(t, failed(), was)
	require.NoError(t, f.Update(parse(t, text(""))))
	require.GreaterOrEqual(t, failed(), was)
}

func TestLoadPollConfig(t *testing.T) {
	for field, want := range map[string]string{
		"load_poll: 'ftp://HOST/'":                                        "deployments.chat: load_poll: want grpc:vllm",
		"load_poll: {from: 'grpc:vllm'}":                                  "load_poll: it is an object, not a string",
		"load_poll: 'grpc:other'":                                         "load_poll: \"grpc:other\" is none of [grpc:openengine grpc:orca grpc:sglang grpc:tokenspeed grpc:vllm]",
		"load_pages: {a: 'http://HOST/x'}":                                "load_poll: want grpc:vllm",
		"load_poll: 'http://HOST:PORT/metrics', load_pages: {a: nowhere}": "load_pages.a: want",
	} {
		_, err := ParseConfig([]byte("deployments: {chat: {register: true, " + field + "}}"))
		require.ErrorContains(t, err, want, field)
	}
}

// A replica that does not answer polls is logged once, as is that it answers again.
func TestProblemsOfPolls(t *testing.T) {
	log := new(logBook)
	x := sources{log: slog.New(slog.NewTextHandler(log, nil)), now: time.Now, roster: new(roster)}
	x.config.LoadPoll = "grpc:vllm"
	x.roster.fleetOf("a")
	a := x.roster.byID["a"]
	for range 3 {
		x.poll("a", load.Report{}, errors.New("it is down"))
		require.Equal(t, "its load cannot be polled: it is down", a.pollProblem)
	}
	for range 3 {
		x.poll("a", load.Report{Ongoing: 1}, nil)
		require.Empty(t, a.pollProblem)
		require.EqualValues(t, 1, a.polled.ongoing)
	}
	require.Equal(t, 1, strings.Count(log.String(), "the load of a replica cannot be polled"))
	require.Equal(t, 1, strings.Count(log.String(), "reports its load again"))
}
