package chaos

import (
	"time"

	"github.com/warmpath/warmpath/internal/lab/faultproxy"
)

// grace sets how long engines let calls go on after SIGTERM.
func grace(d time.Duration) func(*stage, map[string]any) {
	return func(s *stage, _ map[string]any) { s.spec.Grace = d }
}

// Draining is how long the replicas of outlast let calls go on: longer ones are cut.
const Draining = 200 * time.Millisecond

// outlast makes some streams longer than the engines' grace.
func outlast(s *stage, _ map[string]any) {
	s.spec.Grace = Draining
	s.load.longEvery = 8
	s.load.longTokens = int(5 * Draining.Seconds() * s.Speed / tokenTime(s.Preset).Seconds())
}

// bounded lets replicas refuse what is too much, and calls wait for room.
func bounded(s *stage, config map[string]any) {
	const most = 4
	s.spec.MaxOngoing = most
	config["max_ongoing_requests"] = most
	config["max_queued_requests"] = 4 * s.Sessions
}

func rollingRestart(s *stage) error {
	for _, r := range s.replicas {
		s.log("%s goes and comes back", r.id)
		s.step(r)
		r.stop()
		if err := s.comeback(r); err != nil {
			return err
		}
	}
	return nil
}

// comeback lets every session be called while the replica is away, and again when it is back.
func (s *stage) comeback(r *replica) error {
	if err := s.rounds(1); err != nil {
		return err
	}
	if err := r.start(s.ctx); err != nil {
		return err
	}
	s.fleet.set(entries(s.replicas)) // it is another instance
	return s.restored(r)
}

func killed(s *stage) error {
	for _, r := range s.replicas[:max(len(s.replicas)/2, 1)] {
		if err := s.busy(r); err != nil {
			return err
		}
		s.log("%s is killed", r.id)
		s.step(r)
		r.kill()
		if err := s.comeback(r); err != nil {
			return err
		}
	}
	return nil
}

func hang(s *stage) error {
	r := s.replicas[0]
	s.log("%s hangs", r.id)
	s.step(r)
	r.pause()
	err := s.last(s.Timeout)
	s.log("%s goes on", r.id)
	r.resume()
	if err != nil {
		return err
	}
	return s.restored(r)
}

func partition(s *stage) error {
	far := s.replicas[:len(s.replicas)/2]
	s.log("%d replicas are out of reach", len(far))
	s.step(far...)
	for _, r := range far {
		r.proxy.Set(faultproxy.Fault{Blackhole: true})
	}
	err := s.last(s.Timeout)
	s.log("they are back")
	for _, r := range far {
		r.proxy.Set(faultproxy.Fault{})
	}
	if err != nil {
		return err
	}
	return s.restored(far...)
}

// resets breaks the connections of every replica: with TCP's reset, in good order, and with GOAWAY.
func resets(s *stage) error {
	harms := []struct {
		what string
		do   func(*faultproxy.Proxy)
	}{
		{"reset", (*faultproxy.Proxy).Reset}, {"closed", (*faultproxy.Proxy).Drop}, {"ended with GOAWAY",
			(*faultproxy.Proxy).GoAway},
	}
	for i, r := range s.replicas {
		harm := harms[i%len(harms)]
		if err := s.busy(r); err != nil {
			return err
		}
		s.log("the connections of %s are %s", r.id, harm.what)
		s.step(r)
		harm.do(r.proxy)
		if err := s.restored(r); err != nil {
			return err
		}
	}
	return nil
}

// halfOpen lets a replica's connections lead nowhere until a time-out, as TCP has in the end, while calls have time
// left to be made elsewhere.
func halfOpen(s *stage) error {
	const most = 5 * time.Second
	r := s.replicas[0]
	s.log("the connections of %s lead nowhere", r.id)
	s.step(r)
	r.proxy.HalfOpen()
	err := s.last(min(s.Timeout/2, most))
	s.log("they are found to be broken")
	r.proxy.Drop()
	if err != nil {
		return err
	}
	return s.restored(r)
}

func goAway(s *stage) error {
	for _, r := range s.replicas {
		if err := s.busy(r); err != nil {
			return err
		}
		s.log("%s sends GOAWAY", r.id)
		s.step(r)
		r.proxy.GoAway()
		if err := s.restored(r); err != nil {
			return err
		}
	}
	return nil
}

// slow lets a replica answer late, and read not much faster than the load needs.
func slow(s *stage) error {
	const bytesPerToken = 8 // about twice what a call takes
	r := s.replicas[0]
	s.log("%s is slow", r.id)
	s.step(r)
	needs := s.Rate / float64(len(s.replicas)) * float64(s.PromptTokens) * bytesPerToken
	r.proxy.Set(faultproxy.Fault{Delay: s.Late, BytesPerSecond: int(needs)})
	err := s.rounds(2)
	r.proxy.Set(faultproxy.Fault{})
	s.log("%s is as before", r.id)
	if err != nil {
		return err
	}
	return s.restored(r)
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
	s.fleet.set(entries(s.replicas))
	if err := s.restored(more...); err != nil {
		return err
	}
	s.log("from %d to %d replicas", s.Most, len(few))
	s.step(more...)
	s.fleet.set(entries(few))
	if err := s.restored(few...); err != nil {
		return err
	}
	// Calls that were under way on those that are gone end by themselves before their connections do.
	err = s.until("no client is connected to a replica that is gone", func() bool {
		for _, r := range more {
			if r.proxy.Conns() > 0 {
				return false
			}
		}
		return true
	})
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
	if err := s.until("the queues have emptied",
		func() bool { return s.gauge("warmpath.queue.length") == 0 }); err != nil {
		return err
	}
	if err := s.rounds(1); err != nil {
		return err
	}
	s.over = s.load.now()
	return s.rounds(1)
}
