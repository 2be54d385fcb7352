package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestPriorityInTheKey(t *testing.T) {
	for sent, want := range map[warmpathv1.Priority]int{
		warmpathv1.Priority_PRIORITY_UNSPECIFIED: 0,
		warmpathv1.Priority_PRIORITY_LOW:         -1,
		warmpathv1.Priority_PRIORITY_NORMAL:      0,
		warmpathv1.Priority_PRIORITY_HIGH:        1,
		warmpathv1.Priority(77):                  0, // of a later version
	} {
		var q policy.Request
		key := &warmpathv1.RequestKey{Priority: sent, Prompt: &warmpathv1.RequestKey_Text{Text: "x"}}
		require.NoError(t, decodeKey(&warmpathv1.ChooseReplicaRequest{Key: key}, &q))
		require.Equal(t, want, q.Priority, sent)
	}
}
