package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/lab/report"
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
			return fmt.Errorf("every request of %s failed, the first with: %w", res.Policy, res.FirstError)
		default:
			fmt.Fprintf(c.ErrOrStderr(), "%s: %d requests failed, the first with: %v\n", res.Policy, res.Errors, res.FirstError)
		}
	}
	if r.Invalid != "" {
		return invalidError{r.Invalid}
	}
	return nil
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
