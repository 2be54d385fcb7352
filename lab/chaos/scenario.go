package chaos

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/lab/faultproxy"
)

// A Scenario is one kind of harm.
type Scenario struct {
	// Name as in Options.Scenario, What it does, in a few words.
	Name, What string
	// Apart: it takes long, and is not part of "all".
	Apart bool
	// Processes: it sends signals to the engines, which only [Processes] understand; those in process do what comes
	// next to it.
	Processes bool
	// set changes the engines, the load and the channels' config before the run; may be nil.
	set func(s *stage, config map[string]any)
	run func(*stage) error
	// may are the outcomes that calls may have beside Served.
	may []Outcome
	// moves: in each step only the sessions of one replica may move.
	moves bool
}

// Scenarios are those that there are.
var Scenarios = []Scenario{
	{
		Name: "rolling-restart", What: "every replica in turn drains, goes, and comes back empty",
		run: inTurn(all, drain), moves: true,
	},
	{
		Name: "abort", What: "the same with replicas that cut their calls at SIGTERM",
		Processes: true, set: func(s *stage, _ map[string]any) { s.spec.Grace = 0 },
		run: inTurn(all, drain), may: []Outcome{Cut, SentTwice}, moves: true,
	},
	{
		Name: "outlast", What: "the same with replicas that drain, and streams that take longer than they may",
		set: outlast, run: inTurn(all, drain), may: []Outcome{Cut, SentTwice},
	},
	{
		Name: "kill", What: "replicas are killed with SIGKILL, one after another, and come back empty",
		Processes: true, run: inTurn(half, kill), may: []Outcome{Cut, SentTwice}, moves: true,
	},
	{
		Name: "hang", What: "a replica is stopped with SIGSTOP: it takes calls and never answers; then it goes on",
		Processes: true, may: []Outcome{TimedOut},
		run: lasting(first, "hangs", "goes on", forTimeout,
			func(_ *stage, r *replica) { r.pause() }, func(r *replica) { r.resume() }),
	},
	{
		Name: "partition", What: "half of the replicas can no longer be reached, without notice; then they can",
		may: []Outcome{TimedOut},
		run: lasting(half, "is out of reach", "is back", forTimeout,
			func(_ *stage, r *replica) { r.silence() }, func(r *replica) { r.resume() }),
	},
	{
		Name: "reset", What: "connections are reset in the middle of streams, or ended with GOAWAY",
		run: inTurn(all, reset, drop, goAway), may: []Outcome{Cut, SentTwice},
	},
	{
		// The connections end in a time-out, as TCP has one in the end, while calls have time left to be made elsewhere.
		Name: "half-open", What: "a replica is taken away behind its connections' back, as if it had lost its power",
		may: []Outcome{Cut, TimedOut},
		run: lasting(first, "has connections that lead nowhere", "has its connections closed",
			func(s *stage) error { return pause.For(s.ctx, min(s.Timeout/2, 5*time.Second)) },
			func(_ *stage, r *replica) { r.proxy.HalfOpen() }, func(r *replica) { r.proxy.Drop() }),
	},
	{
		Name: "go-away", What: "every replica in turn sends its clients GOAWAY",
		run: inTurn(all, goAway), moves: true,
	},
	{
		Name: "slow", What: "a replica answers a second late and reads slowly",
		may: []Outcome{TimedOut},
		run: lasting(first, "is slow", "is as before", func(s *stage) error { return s.rounds(2) },
			slow, func(r *replica) { r.resume() }),
	},
	{
		Name: "scale", What: "the fleet grows tenfold, and shrinks again",
		run: scale,
	},
	{
		Name: "flood", What: "twenty times the calls, more than the replicas admit",
		set: bounded, run: flood, may: []Outcome{Refused, TimedOut},
	},
	{
		Name: "soak", What: "drains, kills, resets and changes of the fleet in turn, for long", Apart: true,
		run: soak, may: []Outcome{Cut, SentTwice},
	},
}

// Find is the scenario of this name.
func Find(name string) (*Scenario, error) {
	i := slices.IndexFunc(Scenarios, func(sc Scenario) bool { return sc.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("chaos: there is no scenario %q", name)
	}
	return &Scenarios[i], nil
}

// part is a part of the fleet.
type part func([]*replica) []*replica

func all(rs []*replica) []*replica   { return rs }
func half(rs []*replica) []*replica  { return rs[:max(len(rs)/2, 1)] }
func first(rs []*replica) []*replica { return rs[:1] }

// harm is what happens to one replica at one moment.
type harm struct {
	what string
	// busy: it happens while a call is under way there.
	busy bool
	// do does it and waits until the replica is as it was.
	do func(*stage, *replica) error
}

var (
	drain = harm{what: "goes and comes back", do: func(s *stage, r *replica) error {
		r.engine.Stop()
		return s.comeback(r)
	}}
	kill = harm{what: "is killed", busy: true, do: func(s *stage, r *replica) error {
		r.engine.Kill()
		return s.comeback(r)
	}}
	reset   = harm{what: "has its connections reset", busy: true, do: atProxy((*faultproxy.Proxy).Reset)}
	drop    = harm{what: "has its connections closed", busy: true, do: atProxy((*faultproxy.Proxy).Drop)}
	goAway  = harm{what: "sends GOAWAY", busy: true, do: atProxy((*faultproxy.Proxy).GoAway)}
	replace = harm{what: "is replaced", do: (*stage).replace}
)

func atProxy(do func(*faultproxy.Proxy)) func(*stage, *replica) error {
	return func(s *stage, r *replica) error {
		do(r.proxy)
		return s.restored(r)
	}
}

func (s *stage) suffer(h harm, r *replica) error {
	if h.busy {
		if err := s.busy(r); err != nil {
			return err
		}
	}
	s.log("%s %s", r.id, h.what)
	s.step(r)
	return h.do(s, r)
}

// inTurn lets each replica of a part suffer one of the harms, one after the other.
func inTurn(which part, harms ...harm) func(*stage) error {
	return func(s *stage) error {
		for i, r := range which(s.replicas) {
			if err := s.suffer(harms[i%len(harms)], r); err != nil {
				return err
			}
		}
		return nil
	}
}

// lasting lets a part of the fleet suffer for a time.
func lasting(which part, what, over string, last func(*stage) error, begin func(*stage, *replica),
	end func(*replica)) func(*stage) error {
	return func(s *stage) error {
		rs := which(s.replicas)
		s.step(rs...)
		for _, r := range rs {
			s.log("%s %s", r.id, what)
			begin(s, r)
		}
		err := last(s)
		for _, r := range rs {
			s.log("%s %s", r.id, over)
			end(r)
		}
		if err != nil {
			return err
		}
		return s.restored(rs...)
	}
}

func forTimeout(s *stage) error { return pause.For(s.ctx, s.Timeout) }

// Draining is how long the replicas of outlast let calls go on: longer ones are cut.
const Draining = 200 * time.Millisecond

// outlast makes some streams longer than the engines' grace.
func outlast(s *stage, _ map[string]any) {
	s.spec.Grace = Draining
	s.load.longEvery = 8
	s.load.longTokens = int(5 * Draining.Seconds() * s.Speed / s.tokenTime().Seconds())
}

// bounded lets replicas refuse what is too much, and calls wait for room.
func bounded(s *stage, config map[string]any) {
	const most = 4
	s.spec.MaxOngoing = most
	config["max_ongoing_requests"] = most
	config["max_queued_requests"] = 4 * s.Sessions
}

// slow lets a replica answer late, and read not much faster than the load needs.
func slow(s *stage, r *replica) {
	const bytesPerToken = 8 // about twice what a call takes
	needs := s.Rate / float64(len(s.replicas)) * float64(s.PromptTokens) * bytesPerToken
	r.proxy.Set(faultproxy.Fault{Delay: s.Late, BytesPerSecond: int(needs)})
}

func scale(s *stage) error {
	few := s.replicas
	s.log("from %d to %d replicas", len(few), s.Most)
	more, err := startReplicas(s.ctx, len(few), s.Most, s.spec, InProcess)
	if err != nil {
		return err
	}
	s.replicas = append(few[:len(few):len(few)], more...)
	s.step(few...)
	s.setFleet(s.replicas)
	if err := s.restored(more...); err != nil {
		return err
	}
	s.log("from %d to %d replicas", s.Most, len(few))
	s.step(more...)
	s.setFleet(few)
	if err := s.restored(few...); err != nil {
		return err
	}
	err = s.disconnected(more...)
	s.replicas = few
	closeReplicas(more)
	return err
}

func flood(s *stage) error {
	const times = 20
	s.log("%d times the calls", times)
	s.step(s.replicas...)
	s.load.setRate(s.Rate * times)
	err := s.rounds(times)
	s.load.setRate(s.Rate)
	s.log("as many calls as before")
	if err != nil {
		return err
	}
	s.back = s.load.now()
	if err := s.until("the queues have emptied", patience,
		func() bool { return s.gauge(everywhere, "warmpath.queue.length") == 0 }); err != nil {
		return err
	}
	if err := s.rounds(1); err != nil {
		return err
	}
	s.over = s.load.now()
	return s.rounds(1)
}

// soak lets one thing after another happen to one replica after another, and measures what is held after
// every tour of the fleet.
func soak(s *stage) error {
	harms := []harm{drain, kill, reset, replace, goAway}
	n := len(s.replicas)
	for turn := range s.Turns {
		if err := s.suffer(harms[turn%len(harms)], s.replicas[turn%n]); err != nil {
			return err
		}
		if turn%n == n-1 {
			last, err := s.footprint()
			if err != nil {
				return err
			}
			s.memory = append(s.memory, last)
			s.log("turn %d: %d goroutines, %d KiB", turn+1, last.Goroutines, last.Heap>>10)
		}
	}
	return nil
}

// replace puts a new replica, with a new id and address, in the place of one.
func (s *stage) replace(old *replica) error {
	id := old.id + "-" + strconv.Itoa(len(s.steps))
	next, err := newReplica(s.ctx, id, s.spec, s.Launch)
	if err != nil {
		return err
	}
	s.replicas[slices.Index(s.replicas, old)] = next
	s.touched[id] = s.load.now()
	s.setFleet(s.replicas)
	err = s.disconnected(old)
	old.close()
	if err != nil {
		return err
	}
	return s.restored(next)
}
