package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/pause"
)

// What may happen to the look-aside servers while requests are sent.
const (
	faultKill = "kill" // the one in use is killed and started again
	faultStop = "stop" // the one in use is stopped (SIGSTOP) and goes on (SIGCONT)
	faultCut  = "cut"  // one client cannot reach any
)

var faults = []string{"", faultKill, faultStop, faultCut}

// fault is what happens, and when.
type fault struct {
	name   string
	after  time.Duration
	length time.Duration
	log    bool
}

func (f *fault) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "fault", "",
		"what happens to the look-aside server in use: kill (and start again), stop (SIGSTOP, SIGCONT), or cut: the "+
			"first client cannot reach any")
	flags.DurationVar(&f.after, "fault-after", 0,
		"when, after the first request; 0 means in the middle of what is measured")
	flags.DurationVar(&f.length, "fault-for", 5*time.Second, "how long")
	flags.BoolVar(&f.log, "server-log", false,
		"write what the look-aside servers log, and the clients of them, to standard error")
}

func (f *fault) check(modes []string) error {
	if err := oneOf("fault", f.name, faults); err != nil {
		return err
	}
	switch {
	case f.name == "":
		return nil
	case len(modes) == 0 || slices.Equal(modes, []string{modeLocal}):
		return usagef("--fault: there is no look-aside server without --mode broadcast or central")
	case f.after < 0 || f.length <= 0:
		return usagef("--fault-after, --fault-for: a time is not positive")
	}
	return nil
}

// A happening is a fault in one run.
type happening struct {
	fault
	ended  sync.WaitGroup
	cancel context.CancelFunc
	err    error
	// began and over are when it happened, after the first request.
	began, over time.Duration
}

// plan has a fault happen in a run; length is how long that takes. It returns nil where there is none.
func (f *fault) plan(ctx context.Context, s *stage, from, length time.Duration) *happening {
	if f.name == "" || len(s.servers) == 0 {
		return nil
	}
	h := &happening{fault: *f}
	if h.after == 0 {
		h.after = from + (length-from)/3
	}
	ctx, h.cancel = context.WithCancel(ctx)
	s.options.Started = func() {
		start := time.Now()
		h.ended.Go(func() { h.err = h.happen(ctx, s, start) })
	}
	return h
}

func (h *happening) happen(ctx context.Context, s *stage, start time.Time) error {
	if pause.For(ctx, h.after) != nil {
		return fmt.Errorf("--fault-after: the run ended before %v", h.after)
	}
	begin, end := h.does(ctx, s)
	h.began = time.Since(start)
	if err := begin(); err != nil {
		return err
	}
	if pause.For(ctx, h.length) != nil { // nothing is mended that is about to be taken down
		return fmt.Errorf("--fault-for: the run ended before %v", h.after+h.length)
	}
	err := end()
	h.over = time.Since(start)
	return err
}

// end ends the fault, and waits for that.
func (h *happening) end() {
	if h != nil {
		h.cancel()
		h.ended.Wait()
	}
}

// does returns what begins and what ends the fault.
func (h *happening) does(ctx context.Context, s *stage) (begin, end func() error) {
	used := s.servers[0]
	switch h.name {
	case faultKill:
		return func() error { used.Kill(); return nil }, func() error { return used.Restart(ctx) }
	case faultStop:
		return func() error { used.Pause(); return nil }, func() error { used.Resume(); return nil }
	}
	return func() error { s.cables[0].Cut(); return nil }, func() error { s.cables[0].Mend(); return nil }
}

// measure ends the fault and reports what it did to the run.
func (h *happening) measure(r *drive.Result, speed float64, warmUp time.Duration, replicas int) error {
	h.end()
	if h.err != nil {
		return h.err
	}
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) * speed) }
	samples := r.Samples
	if h.name == faultCut { // the others go on as before
		samples = slices.DeleteFunc(slices.Clone(samples), func(s drive.Sample) bool { return s.Client != 0 })
	}
	marks := []drive.Mark{{Name: "before", At: warmUp}, {Name: h.name, At: scale(h.began)},
		{Name: "after", At: scale(h.over)}}
	r.Phases = drive.Phases(samples, replicas, marks)
	ms := -1.
	if took, ok := drive.Recovered(samples, scale(h.over), r.Phases[0]); ok {
		ms = float64(took) / speed / float64(time.Millisecond)
	}
	r.RecoveredMS = &ms
	return nil
}
