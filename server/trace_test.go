package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const learning = `
deployments:
  chat:
    policy: {kv_aware: {}}
    replicas: [{id: a, address: "10.0.0.1:1"}, {id: b, address: "10.0.0.2:1"}, {id: c, address: "10.0.0.3:1"}]
`

// Issues 12.2 and 12.42: over the wire a question, a reservation that is given back unsent, and one that was refused
// leave no trace; what was sent does.
func TestOnlyWhatWasSentIsLearned(t *testing.T) {
	f := start(t, learning)
	pick := func(mode warmpathv1.PickMode) *warmpathv1.ChooseReplicaResponse {
		return f.choose(t, &warmpathv1.ChooseReplicaRequest{Mode: mode, Key: &warmpathv1.RequestKey{Prompt: tokens(8000)}})
	}
	end := func(id string, o *warmpathv1.Outcome) {
		_, err := f.pb.ReportLife(soon(t), &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{
			{Reservation: id, Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED, Outcome: o},
		}})
		require.NoError(t, err)
	}
	for range 3 {
		require.Zero(t, pick(query).GetDecision().GetMatchedTokens(), "a question")
	}
	for _, o := range []*warmpathv1.Outcome{{}, {Code: int32(codes.Unavailable)}, {Code: int32(codes.ResourceExhausted), Sent: true}} {
		end(pick(reserve).GetReservation().GetId(), o)
		require.Zero(t, pick(query).GetDecision().GetMatchedTokens(), "%v", o)
	}
	end(pick(reserve).GetReservation().GetId(), &warmpathv1.Outcome{Sent: true, FirstMessageUs: 1000})
	require.EqualValues(t, 8000, pick(query).GetDecision().GetMatchedTokens())
}
