package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

const (
	failing = warmpathv1.FindingKind_FINDING_KIND_FAILING
	late    = warmpathv1.FindingKind_FINDING_KIND_LATE
	trying  = warmpathv1.FindingKind_FINDING_KIND_TRYING
	isWell  = warmpathv1.FindingKind_FINDING_KIND_WELL
	well    = warmpathv1.VerdictState_VERDICT_STATE_WELL
)

// court is a fleet of replicas under verdicts, on a clock of its own.
type court struct {
	verdicts
	t       *testing.T
	now     time.Time
	clients []string
	members int
}

func newCourt(t *testing.T, members int, clients ...string) *court {
	c := &court{t: t, now: time.Unix(1000, 0), clients: clients, members: members}
	c.rules = routing.DefaultEjection()
	return c
}

// says replaces what a client finds of one replica; kind 0 = nothing.
func (c *court) says(id string, replica uint32, kind warmpathv1.FindingKind, term uint64) {
	var all []*warmpathv1.Finding
	if kind != 0 {
		all = append(all, &warmpathv1.Finding{Replica: replica, Kind: kind, Term: term})
	}
	c.find(id, all, c.members, c.now)
}

func (c *court) pass(d time.Duration) {
	c.now = c.now.Add(d)
	c.advance(c.now, func() []string { return c.clients })
}

// state is what a client is told of a replica.
func (c *court) state(id string, replica uint32) (s warmpathv1.VerdictState, term uint64, turn bool) {
	for _, v := range c.told(id).GetVerdicts() {
		if v.GetReplica() == replica {
			return v.GetState(), v.GetTerm(), v.GetTurn()
		}
	}
	return well, 0, false
}

// turn is the client whose turn it is; there is never more than one.
func (c *court) turn(replica uint32) (whose string) {
	for _, id := range c.clients {
		if _, _, turn := c.state(id, replica); turn {
			require.Empty(c.t, whose, "two have the turn")
			whose = id
		}
	}
	return whose
}

func (c *court) is(want warmpathv1.VerdictState, replica uint32) {
	c.t.Helper()
	s, _, _ := c.state("a", replica)
	require.Equal(c.t, want, s)
}

// One client's word makes suspect, another's ejects.
func TestTwoClientsEject(t *testing.T) {
	c := newCourt(t, 8, "a", "b", "c")
	c.says("a", 1, late, 0)
	c.is(suspect, 1)
	c.says("a", 1, late, 0)
	c.says("a", 1, failing, 0)
	c.is(suspect, 1)
	c.says("b", 1, late, 0)
	c.is(ejected, 1)
	c.pass(9 * time.Second)
	require.Empty(t, c.turn(1), "nobody's turn")
	c.pass(2 * time.Second)
	require.NotEmpty(t, c.turn(1))
}

// A suspicion is looked into at once by one who does not share it, and the turn goes round until somebody uses it.
func TestTurns(t *testing.T) {
	c := newCourt(t, 8, "a", "b", "c")
	c.says("a", 1, late, 0)
	seen := map[string]int{}
	for range 6 {
		c.pass(turnTime)
		seen[c.turn(1)]++
	}
	require.Equal(t, map[string]int{"b": 3, "c": 3}, seen)
	tries := c.turn(1)
	_, term, _ := c.state(tries, 1)
	c.says(tries, 1, trying, term)
	for range 20 {
		c.pass(2 * time.Second)
		require.Equal(t, tries, c.turn(1))
		c.says(tries, 1, trying, term)
	}
	c.pass(30 * time.Second)
	require.NotEqual(t, tries, c.turn(1), "it has had its time")
	c.says(tries, 1, isWell, term-1)
	c.is(suspect, 1)
	c.says(tries, 1, isWell, term)
	c.is(well, 1)
	_, lifted, _ := c.state("a", 1)
	require.Equal(t, term+1, lifted)
}

// Whoever tries in its turn and fails is the second to say so, and later makes the ejection longer.
func TestTrialsFail(t *testing.T) {
	c := newCourt(t, 8, "a", "b")
	c.says("a", 1, late, 0)
	c.pass(turnTime)
	require.Equal(t, "b", c.turn(1))
	_, term, _ := c.state("b", 1)
	c.says("b", 1, late, term)
	c.is(ejected, 1)
	for length := 10 * time.Second; length < time.Minute; length *= 2 {
		c.pass(length - time.Second)
		require.Empty(t, c.turn(1))
		c.pass(2 * time.Second)
		p := c.turn(1)
		_, term, _ := c.state(p, 1)
		c.says(p, 1, late, term)
		c.is(ejected, 1)
		require.Empty(t, c.turn(1))
	}
}

// Where nobody else can look, the one who suspects may try again by itself.
func TestLoneClient(t *testing.T) {
	c := newCourt(t, 8, "a")
	c.says("a", 1, late, 0)
	c.pass(5 * time.Second)
	require.Empty(t, c.turn(1))
	c.pass(6 * time.Second)
	require.Equal(t, "a", c.turn(1))
	_, term, _ := c.state("a", 1)
	c.says("a", 1, late, term)
	c.is(suspect, 1)
	c.pass(11 * time.Second)
	require.Empty(t, c.turn(1), "twice as long")
	c.pass(10 * time.Second)
	_, term, _ = c.state("a", 1)
	c.says("a", 1, isWell, term)
	c.is(well, 1)
}

// Old news does not bring a verdict back; new findings do.
func TestNewsFromBeforeTheLifting(t *testing.T) {
	c := newCourt(t, 8, "a", "b", "c")
	c.says("a", 1, late, 0)
	c.says("b", 1, late, 0)
	c.pass(11 * time.Second)
	p := c.turn(1)
	_, term, _ := c.state(p, 1)
	c.says(p, 1, isWell, term)
	c.is(well, 1)
	c.says("a", 1, late, 0)
	c.says("b", 1, late, 0)
	c.says("c", 1, late, term)
	c.is(well, 1)
	c.says("c", 1, late, term+1)
	c.is(suspect, 1)
}

// A client that lies alone never ejects, and is believed less and less.
func TestLiar(t *testing.T) {
	for _, withdraws := range []bool{false, true} {
		t.Run(fmt.Sprint("withdraws ", withdraws), func(t *testing.T) { lie(t, withdraws) })
	}
}

func lie(t *testing.T, withdraws bool) {
	c := newCourt(t, 8, "a", "b", "liar")
	under := 0
	for range 600 { // seconds
		var lies []*warmpathv1.Finding
		for replica := range uint32(8) {
			_, term, _ := c.state("liar", replica+1)
			lies = append(lies, &warmpathv1.Finding{Replica: replica + 1, Kind: late, Term: term})
		}
		c.find("liar", lies, c.members, c.now)
		held := 0
		for replica := range uint32(8) {
			s, _, _ := c.state("a", replica+1)
			require.NotEqual(t, ejected, s)
			if s == suspect {
				held++
			}
		}
		require.LessOrEqual(t, held, 2, "max_share of 8")
		under += held
		if withdraws {
			c.find("liar", nil, c.members, c.now)
		}
		c.pass(time.Second)
		for replica := range uint32(8) {
			for _, honest := range []string{"a", "b"} {
				if s, term, turn := c.state(honest, replica+1); turn && s == suspect {
					c.says(honest, replica+1, isWell, term)
				}
			}
		}
	}
	require.Less(t, under, 100, "of 4,800 seconds of replicas")
}

// The fleet keeps its share, and the last replica its calls.
func TestVerdictsKeepTheFleet(t *testing.T) {
	for members, most := range map[int]int{1: 0, 2: 1, 4: 1, 10: 3} {
		c := newCourt(t, members, "a", "b")
		n := 0
		for replica := range uint32(members) {
			c.says("a", replica+1, failing, 0)
			c.says("b", replica+1, failing, 0)
			if s, _, _ := c.state("a", replica+1); s != well {
				n++
			}
		}
		require.Equal(t, 1, min(most, 1)*min(n, 1)+1-min(most, 1), members)
		require.LessOrEqual(t, n, most, members)
	}
}

// A case ends when nobody pursues it any more, and with its replica.
func TestCasesEnd(t *testing.T) {
	c := newCourt(t, 8, "a", "b")
	c.says("a", 1, late, 0)
	c.clients = []string{"b"} // a has gone
	c.pass(time.Second)
	c.is(suspect, 1)
	for range 15 {
		c.pass(time.Second)
	}
	c.is(well, 1)
	c.says("b", 2, late, 0)
	c.forget(func(n uint32) bool { return n != 2 })
	c.is(well, 2)
	require.Len(t, c.cases, 1)
}

// What stands in a case is bounded, whoever comes.
func TestCasesAreBounded(t *testing.T) {
	c := newCourt(t, 8, "b")
	for i := range 3 * maxAgainst {
		c.says(fmt.Sprint("client ", i), 1, late, 0)
	}
	require.LessOrEqual(t, len(c.cases[1].against), maxAgainst)
}

// A case does not remember the turns of all who ever came and went.
func TestTurnsOfThoseGoneAreForgotten(t *testing.T) {
	c := newCourt(t, 4, "a", "b")
	c.says("a", 1, failing, 0)
	c.says("b", 1, failing, 0)
	for i := range 4 * maxAgainst {
		c.clients = []string{"a", "b", fmt.Sprint("c", i)}
		c.pass(time.Hour)
	}
	require.Equal(t, ejected, c.cases[1].state, "nobody used a turn")
	require.LessOrEqual(t, len(c.cases[1].had), maxAgainst+1)
}
