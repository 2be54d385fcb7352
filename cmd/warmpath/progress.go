package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// lineEvery is how often progress is printed.
const lineEvery = 2 * time.Second

// progress shows how far a policy is: a line now and then.
type progress struct {
	mu    sync.Mutex // of writing to w
	w     io.Writer
	name  string
	total int // requests; 0 stands for any number
	last  time.Time
}

func newProgress(w io.Writer, name string, total int) *progress {
	return &progress{w: w, name: name, total: total, last: time.Now()}
}

// show is a drive.Options.Progress.
func (p *progress) show(now drive.Progress) {
	if time.Since(p.last) < lineEvery {
		return
	}
	p.last = time.Now()
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf(" of %d", p.total)
	}
	p.line("%d%s requests sent, %d answered, %d errors", now.Sent, of, now.Done-now.Errors, now.Errors)
}

// line prints one about what is measured. Goroutines may call it beside show.
func (p *progress) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%s: %s\n", p.name, fmt.Sprintf(format, args...))
}

// end prints in one line how it went.
func (p *progress) end(r *drive.Result, took time.Duration) {
	p.line("done in %.1f s, %d errors, %.0f %% cached, first token after %.0f ms; requests were sent "+
		"%.1f ms late in the mean, %.1f ms p99",
		took.Seconds(), r.Errors, 100*r.CachedTokenRatio, r.TTFT.Mean, r.Lag.Mean, r.Lag.P99)
}
