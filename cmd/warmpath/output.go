package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/report"
)

// outputFlags say where the results go.
type outputFlags struct {
	json   bool
	report string
	csv    string
}

func (o *outputFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&o.json, "json", false, "print one JSON object on standard output and nothing else there")
	f.StringVar(&o.report, "report", "", "write an HTML page with charts to this `file`")
	f.StringVar(&o.csv, "csv", "", "write the tables to this `file`")
}

// check refuses files that could not be written, before the work is done.
func (o *outputFlags) check() error {
	for flag, path := range map[string]string{"report": o.report, "csv": o.csv} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
			return usagef("--%s: there is no directory %s", flag, filepath.Dir(path))
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return usagef("--%s: %s is a directory", flag, path)
		}
	}
	return nil
}

// write prints the results, as an object or as tables and a sentence, and writes the files asked for. It fails if
// with some policy no request succeeded, and if the run is not valid.
func (o *outputFlags) write(c *cobra.Command, r *report.Report) error {
	var err error
	if o.json {
		err = printJSON(c.OutOrStdout(), &r.Comparison)
	} else {
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n%s\n", r.Text(), r.Sentence())
	}
	if err != nil {
		return err
	}
	for path, write := range map[string]func(io.Writer) error{o.report: r.HTML, o.csv: r.CSV} {
		if path == "" {
			continue
		}
		if err := writeFile(path, write); err != nil {
			return err
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		switch {
		case res.FirstError == nil:
		case res.Goodput == 0 && res.Latency.Mean == 0:
			return fmt.Errorf("every request of %s failed, the first with: %s", res.Policy, oneLine(res.FirstError))
		default:
			fmt.Fprintf(c.ErrOrStderr(), "%s: %d requests failed, the first with: %s\n", res.Policy, res.Errors, oneLine(res.FirstError))
		}
	}
	if r.Invalid != "" {
		return invalidError{r.Invalid}
	}
	return nil
}

// oneLine is the beginning of an error: engines answer with stack traces.
func oneLine(err error) string {
	const most = 300
	text, _, more := strings.Cut(err.Error(), "\n")
	if len(text) > most {
		text, more = strings.ToValidUTF8(text[:most], ""), true
	}
	if more {
		text += " …"
	}
	return text
}

// counted is a number of things, of one or of several.
func counted[N int | uint32 | uint64](n N, thing string) string {
	return english.Plural(int(n), thing, "")
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

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
