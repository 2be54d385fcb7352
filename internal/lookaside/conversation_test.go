package lookaside

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// booker answers like a server: one reservation for each name of a question.
type booker struct {
	name func(*warmpathv1.ChooseReplicaRequest) string
	made map[string]string
}

func (b *booker) answer(q *question) *warmpathv1.ChooseReplicasResponse {
	name := b.name(q.choose)
	r := &warmpathv1.Reservation{Id: b.made[name], LeaseMs: 15_000, Repeated: true}
	if r.Id == "" {
		r.Id, r.Repeated = fmt.Sprint("#", len(b.made)), false
		b.made[name] = r.Id
	}
	return &warmpathv1.ChooseReplicasResponse{Number: q.number, Result: &warmpathv1.ChooseReplicasResponse_Chosen{
		Chosen: &warmpathv1.ChooseReplicaResponse{Replica: &warmpathv1.ChosenReplica{Id: "r1"}, Reservation: r},
	}}
}

// An answer that came too late is given back, and not what a later question with the same request id was answered: by a server
// that has attempts, by one that does not, and whichever of the two answers is late.
func TestLateAnswersTakeNothingAway(t *testing.T) {
	servers := map[string]func(*warmpathv1.ChooseReplicaRequest) string{
		"server": func(r *warmpathv1.ChooseReplicaRequest) string {
			return fmt.Sprint(r.GetKey().GetRequestId(), r.GetAttempt())
		},
		"older server": func(r *warmpathv1.ChooseReplicaRequest) string { return r.GetKey().GetRequestId() },
	}
	for name, of := range servers {
		for late := range 2 {
			t.Run(fmt.Sprint(name, ", late ", late), func(t *testing.T) {
				w, _, _ := unstarted(t)
				d := &Desk{desk: w.desk, deadline: time.Second}
				c := newConversation(w.desk.reserved, nil)
				b := &booker{name: of, made: make(map[string]string)}
				q := &policy.Request{ID: "same", PromptTokens: 100}
				var asked [2]*question
				for i := range asked {
					var err error
					asked[i], _, err = c.put(d.question(q, nil, ""), time.Second)
					require.NoError(t, err)
				}
				require.True(t, c.leave(asked[late], ErrLate))
				for _, x := range asked {
					c.answered(b.answer(x))
				}
				m := <-asked[1-late].answer
				a, err := d.answer(m.GetChosen(), q)
				require.NoError(t, err)

				given := make(map[string]bool)
				for _, life := range w.desk.reserved.take() {
					require.Equal(t, warmpathv1.LifeStage_LIFE_STAGE_RELEASED, life.GetStage())
					given[life.GetReservation()] = true
				}
				held := len(b.made) - len(given)
				if a.Reservation == nil { // own load, which the report to the server has
					require.Zero(t, w.desk.reserved.on("r1"))
				} else {
					require.False(t, given[a.Reservation.id], "it is in use")
					require.Equal(t, load{1, 100}, w.desk.reserved.on("r1"))
					held--
				}
				a.Reservation.Released(nil)
				left := len(w.desk.reserved.take())
				if name == "server" {
					require.NotNil(t, a.Reservation)
					require.Zero(t, held, "what no call uses was given back")
					require.Equal(t, 1, left)
				}
			})
		}
	}
}
