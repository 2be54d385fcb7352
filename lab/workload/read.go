package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// TraceBlock is how many tokens one block id of a mooncake trace stands for.
const TraceBlock = 512

// Bounds on one line of a trace, beyond which it is refused.
const (
	maxLine   = 64 << 20
	maxTokens = 16 << 20
)

// Formats are the trace formats of Load.
var Formats = []string{"mooncake", "text"}

// Load reads a whole trace, sorted by arrival, the first at 0. Empty lines are skipped, fields that a format does not
// have are ignored. A malformed line is an error that names it, and so is a trace without requests.
func Load(r io.Reader, format string) ([]Request, error) {
	parse, known := map[string]func([]byte, int) (Request, error){"mooncake": parseMooncake, "text": parseText}[format]
	if !known {
		return nil, fmt.Errorf("trace format %q is not one of %s", format, strings.Join(Formats, ", "))
	}
	var rs []Request
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<16), maxLine)
	line := 0
	for lines.Scan() {
		line++
		b := bytes.TrimSpace(lines.Bytes())
		if len(b) == 0 {
			continue
		}
		req, err := parse(b, line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		rs = append(rs, req)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", line+1, err)
	}
	if len(rs) == 0 {
		return nil, errors.New("trace has no requests")
	}
	Sort(rs)
	first := rs[0].At
	for i := range rs {
		rs[i].At -= first
	}
	return rs, nil
}

// LoadFile is Load of a file; errors begin with its path.
func LoadFile(path, format string) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rs, err := Load(f, format)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rs, nil
}

// arrival reads a timestamp in units of unit.
func arrival(t *float64, unit time.Duration) (time.Duration, error) {
	if t == nil {
		return 0, errors.New("timestamp is missing")
	}
	at := *t * float64(unit)
	if *t < 0 || at >= math.MaxInt64/2 {
		return 0, fmt.Errorf("timestamp %v is out of range", *t)
	}
	return time.Duration(at), nil
}

func parseMooncake(b []byte, line int) (Request, error) {
	var row struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *int     `json:"input_length"`
		Output    *int     `json:"output_length"`
		IDs       []uint64 `json:"hash_ids"`
	}
	if err := json.Unmarshal(b, &row); err != nil {
		return Request{}, err
	}
	at, err := arrival(row.Timestamp, time.Millisecond)
	switch {
	case err != nil:
		return Request{}, err
	case row.Input == nil:
		return Request{}, errors.New("input_length is missing")
	case *row.Input < 1 || *row.Input > maxTokens:
		return Request{}, fmt.Errorf("input_length %d is not in 1..%d", *row.Input, maxTokens)
	case row.Output == nil:
		return Request{}, errors.New("output_length is missing")
	case *row.Output < 0 || *row.Output > maxTokens:
		return Request{}, fmt.Errorf("output_length %d is not in 0..%d", *row.Output, maxTokens)
	}
	n := *row.Input
	// A trace may leave out the id of a last partial block; it is not shared then.
	if got := len(row.IDs); got != (n+TraceBlock-1)/TraceBlock && got != n/TraceBlock {
		return Request{}, fmt.Errorf("hash_ids has %d ids for %d tokens, want %d", got, n, (n+TraceBlock-1)/TraceBlock)
	}
	req := Request{ID: "t" + strconv.Itoa(line), At: at, PromptTokens: n, OutputTokens: max(*row.Output, 1), Prefix: -1}
	req.Segments = make([]Segment, 0, len(row.IDs)+1)
	for _, id := range row.IDs {
		k := min(n, TraceBlock)
		req.Segments = append(req.Segments, Segment{Seed: BlockSeed(id), Len: int32(k)})
		n -= k
	}
	if n > 0 {
		req.Segments = append(req.Segments, Segment{Seed: freshSeed(req.ID), Len: int32(n)})
	}
	return req, nil
}

func parseText(b []byte, line int) (Request, error) {
	var row struct {
		Timestamp *float64 `json:"timestamp"`
		Session   *string  `json:"session_id"`
		Input     *string  `json:"input"`
		Output    *string  `json:"output"`
	}
	if err := json.Unmarshal(b, &row); err != nil {
		return Request{}, err
	}
	at, err := arrival(row.Timestamp, time.Microsecond)
	switch {
	case err != nil:
		return Request{}, err
	case row.Session == nil:
		return Request{}, errors.New("session_id is missing")
	case row.Input == nil:
		return Request{}, errors.New("input is missing")
	case *row.Input == "":
		return Request{}, errors.New("input is empty")
	case row.Output == nil:
		return Request{}, errors.New("output is missing")
	}
	return Request{
		ID: "t" + strconv.Itoa(line), Session: *row.Session, At: at, Text: *row.Input,
		PromptTokens: textLen(*row.Input), OutputTokens: max(textLen(*row.Output), 1), Prefix: -1,
	}, nil
}
