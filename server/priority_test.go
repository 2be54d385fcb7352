package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestPriorityInTheKey(t *testing.T) {
	for sent, want := range map[warmpathv1.Priority]routing.Priority{
		warmpathv1.Priority_PRIORITY_UNSPECIFIED: routing.PriorityNormal,
		warmpathv1.Priority_PRIORITY_LOW:         routing.PriorityLow,
		warmpathv1.Priority_PRIORITY_NORMAL:      routing.PriorityNormal,
		warmpathv1.Priority_PRIORITY_HIGH:        routing.PriorityHigh,
		warmpathv1.Priority(77):                  routing.PriorityNormal, // of a later version
	} {
		var q routing.Request
		key := &warmpathv1.RequestKey{Priority: sent, Prompt: &warmpathv1.RequestKey_Text{Text: "x"}}
		require.NoError(t, decodeKey(&warmpathv1.ChooseReplicaRequest{Key: key}, &q))
		require.Equal(t, want, q.Priority, sent)
	}
}
