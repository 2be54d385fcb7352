package lookaside

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// stub is a stream over which the test sends and receives.
type stub struct{ chooseStream }

// chosen is a server's answer to a pick, with a reservation.
func chosen(q *pick) *chooseAnswer {
	return &chooseAnswer{Number: q.number, Result: &warmpathv1.ChooseReplicasResponse_Chosen{
		Chosen: &warmpathv1.ChooseReplicaResponse{
			Replica:     &warmpathv1.ChosenReplica{Id: "r1"},
			Reservation: &warmpathv1.Reservation{Id: fmt.Sprint("#", q.choose.GetAttempt()), LeaseMs: 15_000},
		},
	}}
}

// A late answer is released. It does not touch the answer of a later request with the same request id, whichever
// of the two is late.
func TestLateAnswersTakeNothingAway(t *testing.T) {
	for late := range 2 {
		t.Run(fmt.Sprint("late ", late), func(t *testing.T) {
			w, _, _ := unstarted(t)
			d := w.Central()
			w.central.begin(stub{})
			q := &policy.Request{ID: "same", PromptTokens: 100}
			var picks [2]*pick
			for i := range picks {
				var err error
				picks[i], err = w.central.put(d.request(q, nil, "", 0), false)
				require.NoError(t, err)
			}
			require.NotEqual(t, picks[0].choose.GetAttempt(), picks[1].choose.GetAttempt())
			require.True(t, w.central.leave(picks[late], ErrLate))
			require.Len(t, w.central.outgoing(stub{}), 1, "what no call waits for is not sent")
			for _, x := range picks {
				w.central.take(chosen(x))
			}
			a := <-picks[1-late].answer
			require.NoError(t, a.err)
			require.Equal(t, load{1, 100}, w.central.reserved()["r1"])
			given := stages(w.central.outgoing(stub{})[0].GetLives())
			require.Equal(t, []string{fmt.Sprintf("#%d LIFE_STAGE_RELEASED 0", picks[late].choose.GetAttempt())}, given)
			a.Reservation.Released(nil)
			require.Zero(t, w.central.reserved()["r1"])
			require.Len(t, w.central.outgoing(stub{})[0].GetLives(), 1)
		})
	}
}

// Where another server has replaced the one that answers, the request has no answer. Earlier reservations are own
// load, which the next server gets in a report.
func TestAnswerOfAReplacedServer(t *testing.T) {
	w, _, _ := unstarted(t)
	w.view.take(greeting(), true)
	d := w.Central()
	w.central.begin(stub{})
	before, err := w.central.put(d.request(&policy.Request{PromptTokens: 100}, nil, "", 0), false)
	require.NoError(t, err)
	w.central.take(chosen(before))
	require.Equal(t, load{1, 100}, w.central.reserved()["r1"])
	after, err := w.central.put(d.request(&policy.Request{PromptTokens: 100}, nil, "", 0), false)
	require.NoError(t, err)

	w.view.begin("another", time.Now())
	w.central.take(chosen(after))
	a := <-after.answer
	require.ErrorIs(t, a.err, ErrNoServer)
	a = <-before.answer
	require.Equal(t, "r1", a.Replica)
	require.Zero(t, w.central.reserved()["r1"])
	a.Reservation.Released(nil)
	require.Zero(t, w.central.reserved()["r1"])
	_, err = w.central.put(d.request(new(policy.Request), nil, "", 0), false)
	require.ErrorIs(t, err, ErrNoServer)
}

// After several requests without an answer only one now and then is sent, until an answer comes.
func TestServerThatDoesNotAnswer(t *testing.T) { synctest.Test(t, testServerThatDoesNotAnswer) }

func testServerThatDoesNotAnswer(t *testing.T) {
	w, _, _ := unstarted(t)
	d := w.Central()
	w.central.begin(stub{})
	for range tripAfter {
		_, err := d.Ask(t.Context(), time.Nanosecond, false, new(policy.Request), nil, Legs{})
		require.ErrorIs(t, err, ErrLate)
	}
	_, err := w.central.put(d.request(new(policy.Request), nil, "", 0), false)
	require.ErrorIs(t, err, ErrLate)
	time.Sleep(probeAfter)
	q, err := w.central.put(d.request(new(policy.Request), nil, "", 0), false)
	require.NoError(t, err, "the time of the next one has come")
	_, err = w.central.put(d.request(new(policy.Request), nil, "", 0), false)
	require.ErrorIs(t, err, ErrLate)
	w.central.take(chosen(q))
	_, err = w.central.put(d.request(new(policy.Request), nil, "", 0), false)
	require.NoError(t, err)
}

// A patient request waits for a stream, and is sent over the first one. If the stream breaks, requests that wait
// for an answer get that error.
func TestPatientRequest(t *testing.T) {
	w, _, _ := unstarted(t)
	d := w.Central()
	_, err := d.put(d.request(new(policy.Request), nil, "", 0), false)
	require.ErrorIs(t, err, ErrNoServer)
	q, err := d.put(d.request(new(policy.Request), nil, "", 0), true)
	require.NoError(t, err)
	d.forget()
	d.begin(stub{})
	require.Len(t, d.outgoing(stub{}), 1)
	d.end(stub{})
	a := <-q.answer
	require.ErrorIs(t, a.err, ErrNoServer)
	_, err = d.Ask(t.Context(), time.Nanosecond, true, new(policy.Request), nil, Legs{})
	require.ErrorIs(t, err, ErrLate)
}
