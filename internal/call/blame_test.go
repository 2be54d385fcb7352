package call

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// Which replica is at fault where the legs of a request fail, by their statuses, their connections and the lease.
func TestBlame(t *testing.T) {
	table, err := requestkey.NewTable()
	require.NoError(t, err)
	const sequential, rooms = "/vllm.Inference/Generate", "/sglang.grpc.scheduler.SglangScheduler/Generate"
	for _, tt := range []struct {
		name            string
		method          string
		prefill, decode codes.Code // the legs' ends, OK = it has not failed
		gone            string     // the leg whose connection is lost: p or d
		back            string     // the leg whose replica is connected anew
		over            bool       // the decode leg has its first message
		until           time.Duration
		spared          string // the leg that is not at fault
	}{
		{name: "the transfer fails", method: sequential, decode: codes.Internal, until: lease},
		{name: "from a dead replica", method: sequential, decode: codes.Internal, until: lease, gone: "p", spared: "d"},
		{name: "from one that is back", method: sequential, decode: codes.Internal, until: lease, back: "p", spared: "d"},
		{
			name: "with a status that is no fault", method: sequential, decode: codes.FailedPrecondition, until: lease,
			gone: "p", spared: "d",
		},
		{name: "after the lease", method: sequential, decode: codes.Internal, until: -1, spared: "d"},
		{name: "the decode replica dies", method: sequential, decode: codes.Unavailable, until: lease, gone: "d"},
		{name: "both die", method: sequential, decode: codes.Unavailable, until: lease, gone: "p"},
		{name: "the request is wrong", method: sequential, decode: codes.InvalidArgument, until: lease, gone: "p"},
		{name: "nothing was handed over", method: sequential, decode: codes.Internal, gone: "p"},
		{name: "the decode leg fails later", method: sequential, decode: codes.Internal, until: lease, gone: "p", over: true},
		{name: "the prefill leg fails first", method: sequential, prefill: codes.Internal, gone: "d"},

		{name: "both fail with the transfer", method: rooms, prefill: codes.Internal, decode: codes.Internal},
		{name: "the prefill replica dies", method: rooms, prefill: codes.Unavailable, decode: codes.Internal, spared: "d"},
		{
			name: "it dies, the other leg is cancelled", method: rooms, prefill: codes.Unavailable, decode: codes.Canceled,
			spared: "d",
		},
		{name: "it dies, its leg is not seen to fail", method: rooms, decode: codes.Internal, gone: "p", spared: "d"},
		{name: "the other one dies", method: rooms, prefill: codes.Internal, decode: codes.Unavailable, spared: "p"},
		{
			name: "it dies, its leg is cancelled", method: rooms, prefill: codes.Internal, gone: "d", decode: codes.Canceled,
			spared: "p",
		},
		{
			name: "the other one is back", method: rooms, prefill: codes.Internal, back: "d", decode: codes.Canceled,
			spared: "p",
		},
		{name: "the prefill leg fails", method: rooms, prefill: codes.Internal, decode: codes.Canceled},
		{name: "both are gone", method: rooms, prefill: codes.Unavailable, decode: codes.Unavailable, gone: "pd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, d := connectedReplica(), connectedReplica()
			l := &legs{
				kv: table.Lookup(tt.method).Legs(), prefills: linkTo(p), decodes: linkTo(d),
				err: status.Error(tt.prefill, ""), over: tt.over,
			}
			for leg, r := range map[string]*policy.Replica{"p": p, "d": d} {
				part.OfReplica(r).Set(state.Connected, !strings.Contains(tt.gone, leg))
				part.OfReplica(r).Links.Add(uint32(strings.Count(tt.back, leg)))
			}
			if tt.until != 0 {
				l.until = time.Now().Add(tt.until)
			}
			l.decoding()
			l.decoded(status.Error(tt.decode, ""))
			for leg, end := range map[string]codes.Code{"p": tt.prefill, "d": tt.decode} {
				c := &Call{legs: l, leg: leg == "p"}
				c.outcome.last.Replica, c.outcome.result.Err = d, status.Error(end, "")
				c.outcome.result.Fault = policy.Failed
				c.blame()
				require.Equal(t, tt.spared == leg, c.outcome.last.spared, leg)
				require.Equal(t, tt.spared == leg, c.outcome.result.Fault != policy.Failed, leg)
			}
			l.suspect = true
			c := &Call{legs: l}
			l.avoid(&c.key.request)
			require.Equal(t, tt.spared != "p", part.OfRequest(&c.key.request).HasTried("p"))
		})
	}
}
