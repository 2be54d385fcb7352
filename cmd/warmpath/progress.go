package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// lineEvery is how often progress is printed where it goes to a file.
const lineEvery = 2 * time.Second

// progress shows how far a policy is: a bar on a terminal, else a line now and then.
type progress struct {
	mu    sync.Mutex // of writing to w
	w     io.Writer
	name  string
	total int
	bar   *progressbar.ProgressBar
	last  time.Time
}

// newProgress shows the progress of so many requests; 0 stands for any number.
func newProgress(w io.Writer, name string, total int) *progress {
	p := &progress{w: w, name: name, total: total, last: time.Now()}
	if f, ok := w.(*os.File); ok && total > 0 && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(fmt.Sprintf("%-22s", name)),
			progressbar.OptionSetWidth(30), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(false))
	}
	return p
}

// show is a drive.Options.Progress.
func (p *progress) show(now drive.Progress) {
	switch {
	case p.bar != nil:
		p.bar.Set(now.Done) //nolint:errcheck // A bar that cannot be drawn is no reason to stop.
	case time.Since(p.last) >= lineEvery:
		p.last = time.Now()
		of := ""
		if p.total > 0 {
			of = fmt.Sprintf(" of %d", p.total)
		}
		p.line("%d%s requests sent, %d answered, %d errors", now.Sent, of, now.Done-now.Errors, now.Errors)
	}
}

// line prints one about what is measured. Goroutines may call it beside show.
func (p *progress) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%s: %s\n", p.name, fmt.Sprintf(format, args...))
}

// finish takes the bar away.
func (p *progress) finish() {
	if p.bar != nil {
		p.bar.Finish() //nolint:errcheck // As above.
	}
}

// end takes the bar away and prints in one line how it went.
func (p *progress) end(r *drive.Result, took time.Duration) {
	p.finish()
	p.line("done in %.1f s, %d errors, %.0f %% cached, first token after %.0f ms; requests were sent "+
		"%.1f ms late in the mean, %.1f ms p99",
		took.Seconds(), r.Errors, 100*r.CachedTokenRatio, r.TTFT.Mean, r.Lag.Mean, r.Lag.P99)
}
