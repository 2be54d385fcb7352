package lookaside

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Where another server has taken the place of the one that answered before the answer is read, the reservation is own load
// and the next server gets it in a report.
func TestAnswerOfAServerThatIsGone(t *testing.T) {
	for name, gone := range map[string]bool{"it is there": false, "it is gone": true} {
		t.Run(name, func(t *testing.T) {
			w, _, _ := unstarted(t)
			w.view.take(greeting(), true)
			c := newConversation(w.desk.reserved, nil)
			w.desk.talking.Store(c)
			d := &Desk{desk: w.desk, deadline: time.Minute}
			done := make(chan Answer, 1)
			go func() {
				a, _ := d.Ask(t.Context(), &policy.Request{PromptTokens: 100}, nil)
				done <- a
			}()
			<-c.wake
			number := c.unsent()[0].number
			if gone {
				w.view.begin("another", time.Now())
			}
			c.answered(&warmpathv1.ChooseReplicasResponse{Number: number, Result: &warmpathv1.ChooseReplicasResponse_Chosen{
				Chosen: &warmpathv1.ChooseReplicaResponse{
					Replica: &warmpathv1.ChosenReplica{Id: "r1"}, Reservation: &warmpathv1.Reservation{Id: "#1", LeaseMs: 15_000},
				},
			}})
			a := <-done
			require.Equal(t, "r1", a.Replica)
			if gone {
				require.Zero(t, w.desk.reserved.on("r1"))
			} else {
				require.Equal(t, load{1, 100}, w.desk.reserved.on("r1"))
			}
			a.Reservation.Released(nil)
			require.Zero(t, w.desk.reserved.on("r1"))
		})
	}
}
