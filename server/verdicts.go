package server

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// verdicts are what the clients' findings come to: bad news of a replica is shared, so that not everybody pays for it.
//
// The rule. One client's finding makes a replica suspect, a second client's ejects it, for a time that doubles. Either way
// nobody sends it anything but the client whose turn it is, and that one request at a time. The turn goes round until somebody uses
// it: while the replica is suspect at once, among those who have nothing against it; else when its time is over. A
// request that is answered lifts the verdict. What a client found counts only if it knew of the last lifting, since news
// travels slower than requests. A client whose suspicion another one has refuted is not heard about that replica for a time that doubles.
// No more than max_share of the fleet is ever under a verdict, one replica at least stays.
//
// It is used with the deployment's mutex held. O(replicas under a verdict · clients) at most, at every interval.
type verdicts struct {
	rules routing.Ejection
	cases map[uint32]*verdict // by number of the replica: those that are or were under one
	stamp uint64              // grows with every change
}

// A verdict is the case of one replica. Clients stand under their names.
type verdict struct {
	state   warmpathv1.VerdictState
	since   time.Time              // it holds
	kind    warmpathv1.FindingKind // of the finding that was heeded last
	term    uint64
	lifted  uint64          // term of the last lifting
	against map[string]bool // who finds so now
	accused map[string]bool // … or did, since the last lifting
	muted   map[string]mute
	until   time.Time // of the ejection, or of the suspicion's first part
	times   int
	turn    string          // whose turn it is; "" = nobody's
	had     map[string]bool // who had a turn in this term
	ends    time.Time       // of the turn
	used    bool            // … is under way
}

// A mute is a client that is not believed about one replica.
type mute struct {
	until time.Time
	times int
}

const (
	suspect = warmpathv1.VerdictState_VERDICT_STATE_SUSPECT
	ejected = warmpathv1.VerdictState_VERDICT_STATE_EJECTED
	// turnTime is how long a client may leave its turn unused, trialTime how long it may use it without an outcome.
	turnTime  = time.Second
	trialTime = time.Minute
	// maxFindings bounds the findings of a report, and maxAgainst the names that stand in a case of clients that are not there.
	maxFindings = 1000
	maxAgainst  = 1000
)

// ownName is the server's own Router's among the clients. It is longer than theirs may be.
var ownName = "server" + strings.Repeat("!", maxClientID)

func (x *verdict) holds() bool { return x != nil && x.state >= suspect }

// rule puts other rules into force.
func (v *verdicts) rule(e routing.Ejection) {
	v.rules = e
	for _, x := range v.cases {
		if e.Failures == 0 && x.holds() {
			v.lift(x)
		}
	}
}

// find takes all that a client finds, in the place of what it found before.
func (v *verdicts) find(id string, all []*warmpathv1.Finding, members int, now time.Time) {
	finds := make(map[uint32]bool, len(all))
	for _, f := range all {
		finds[f.GetReplica()] = true
		x := v.cases[f.GetReplica()]
		switch f.GetKind() {
		case warmpathv1.FindingKind_FINDING_KIND_FAILING, warmpathv1.FindingKind_FINDING_KIND_LATE:
			v.accuse(id, f, members, now)
		case warmpathv1.FindingKind_FINDING_KIND_TRYING:
			if x.holds() && x.turn == id && f.GetTerm() == x.term && !x.used {
				x.used, x.ends = true, now.Add(trialTime)
			}
		case warmpathv1.FindingKind_FINDING_KIND_WELL:
			if x.holds() && x.had[id] && f.GetTerm() == x.term {
				v.refuted(x, id, now)
				v.lift(x)
			}
		}
	}
	for number, x := range v.cases {
		if x.against[id] && !finds[number] {
			delete(x.against, id)
		}
	}
}

// accuse takes one client's word against a replica.
func (v *verdicts) accuse(id string, f *warmpathv1.Finding, members int, now time.Time) {
	number := f.GetReplica()
	x := v.cases[number]
	if x == nil {
		x = &verdict{state: warmpathv1.VerdictState_VERDICT_STATE_WELL, against: make(map[string]bool), accused: make(map[string]bool), muted: make(map[string]mute)}
	}
	// It tried in its turn, and failed: that is news also of one that was against the replica before.
	tried := x.holds() && x.had[id] && f.GetTerm() == x.term
	switch {
	case f.GetTerm() < x.lifted, x.against[id] && !tried, now.Before(x.muted[id].until), len(x.accused) >= maxAgainst && !x.accused[id]:
		return
	case !x.holds() && !v.mayAccuse(members):
		return
	}
	if v.cases == nil {
		v.cases = make(map[uint32]*verdict)
	}
	v.cases[number] = x
	x.against[id], x.accused[id] = true, true
	x.kind = f.GetKind()
	switch several := len(x.against) >= 2; {
	case several && (tried || x.state != ejected):
		v.sentence(x, ejected, now)
	case !several && (tried || !x.holds()):
		v.sentence(x, suspect, now)
	}
}

// mayAccuse reports whether one more replica may come under a verdict.
func (v *verdicts) mayAccuse(members int) bool {
	n := 0
	for _, x := range v.cases {
		if x.holds() {
			n++
		}
	}
	return v.rules.Failures > 0 && n+1 < members && n < max(int(v.rules.MaxShare*float64(members)), 1)
}

func (v *verdicts) sentence(x *verdict, s warmpathv1.VerdictState, now time.Time) {
	if now.Sub(x.until) > v.rules.MaxTime {
		x.times = 0
	}
	if !x.holds() {
		x.since = now
	}
	if s == suspect && x.holds() {
		x.times++
	}
	length := min(v.rules.BaseTime<<min(x.times, 20), v.rules.MaxTime)
	if s == ejected {
		x.times++
	}
	x.state, x.until = s, now.Add(length)
	v.begin(x)
}

func (v *verdicts) lift(x *verdict) {
	x.state = warmpathv1.VerdictState_VERDICT_STATE_WELL
	v.begin(x)
	x.lifted = x.term
	clear(x.against)
	clear(x.accused)
}

// begin is the begin of a term.
func (v *verdicts) begin(x *verdict) {
	x.term++
	x.had, x.ends = make(map[string]bool), time.Time{}
	x.turn, x.used = "", false
	v.stamp++
}

// refuted notes who suspected what another one has found well, or what it did not pursue itself.
func (v *verdicts) refuted(x *verdict, by string, now time.Time) {
	if x.state != suspect {
		return
	}
	for id := range x.accused {
		if m := x.muted[id]; id != by && (m.times > 0 || len(x.muted) < maxAgainst) {
			x.muted[id] = mute{now.Add(min(v.rules.BaseTime<<min(m.times, 20), v.rules.MaxTime)), m.times + 1}
		}
	}
}

// advance lets time pass: turns go round, and a case ends that nobody pursues. clients are those whose turn it may be, sorted.
func (v *verdicts) advance(now time.Time, clients func() []string) {
	for _, x := range v.cases {
		if !x.holds() {
			continue
		}
		all := clients()
		there := func(id string) bool { _, ok := slices.BinarySearch(all, id); return ok }
		gone := func(id string, _ bool) bool { return !there(id) }
		maps.DeleteFunc(x.against, gone)
		if len(x.had) > maxAgainst { // clients come and go under new names
			maps.DeleteFunc(x.had, gone)
		}
		over := !now.Before(x.until)
		switch {
		case over && len(x.against) == 0 && !now.Before(x.ends):
			v.refuted(x, "", now)
			v.lift(x)
		case x.turn != "" && now.Before(x.ends) && there(x.turn):
		case over || x.state == suspect:
			v.pass(x, all, over, now)
		}
	}
}

// pass gives the turn to the next. Until its first part is over, a suspicion is for others to look at.
func (v *verdicts) pass(x *verdict, clients []string, unrestricted bool, now time.Time) {
	at, found := slices.BinarySearch(clients, x.turn)
	if found {
		at++
	}
	next := ""
	for i := range clients {
		if id := clients[(at+i)%len(clients)]; unrestricted || !x.against[id] {
			next = id
			break
		}
	}
	x.used, x.ends = false, now.Add(turnTime)
	if next != x.turn {
		x.turn = next
		v.stamp++
	}
	if next != "" {
		x.had[next] = true
	}
}

// told is what a client is told.
func (v *verdicts) told(id string) *warmpathv1.VerdictUpdate {
	u := new(warmpathv1.VerdictUpdate)
	for _, number := range slices.Sorted(maps.Keys(v.cases)) {
		x := v.cases[number]
		u.Verdicts = append(u.Verdicts, &warmpathv1.Verdict{
			Replica: number, State: x.state, Term: x.term, Turn: x.holds() && x.turn == id,
		})
	}
	return u
}

// forget strikes out who has left.
func (v *verdicts) forget(known func(uint32) bool) {
	for number := range v.cases {
		if !known(number) {
			delete(v.cases, number)
			v.stamp++
		}
	}
}
