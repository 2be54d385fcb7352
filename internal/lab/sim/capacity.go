package sim

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
	"github.com/warmpath/warmpath/internal/lab/workload"
)

// capacityVersion is raised when engines or arrivals change so that remembered capacities no longer hold.
const capacityVersion = 2

// Search asks for the capacity of a fleet: the highest rate at which round robin with one client keeps a goodput
// of at least 0.95 among those that an idle engine serves in good time.
type Search struct {
	// Requests makes the workload at a rate. First is a rate to begin with.
	Requests func(rate float64) ([]workload.Request, error)
	First    float64
	// Replicas, Engines, WarmUp and Targets are as in a Config.
	Replicas int
	Engines  []enginesim.Config
	WarmUp   time.Duration
	Targets  drive.Targets
	// Dir is where capacities are remembered; empty means nowhere.
	Dir string
	// Progress is called with every rate that is tried; nil = none.
	Progress func(rate float64)
}

// Capacity finds it by bisection to 3 %, or remembers it.
func Capacity(ctx context.Context, s Search) (float64, error) {
	file := ""
	if s.Dir != "" {
		key, err := s.key()
		if err != nil {
			return 0, err
		}
		file = filepath.Join(s.Dir, "capacity-"+key+".json")
		if rate, ok := remembered(file); ok {
			return rate, nil
		}
	}
	most, err := s.longest()
	if err != nil {
		return 0, err
	}
	rate, err := drive.Highest(s.First, func(rate float64) (bool, error) { return s.copes(ctx, rate, most) })
	if err != nil {
		return 0, fmt.Errorf("capacity of %d engines: %w", s.Replicas, err)
	}
	if file != "" {
		remember(file, rate)
	}
	return rate, nil
}

// longest is the longest prompt that the best of the engines serves in good time.
func (s *Search) longest() (int, error) {
	c, err := Config{Replicas: s.Replicas, Clients: 1, Engines: s.Engines}.resolve()
	if err != nil {
		return 0, err
	}
	most := 0
	for _, e := range c.Engines {
		n, err := longest(e, s.Targets)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

// copes reports whether the goodput at a rate is good enough, of prompts up to a length.
func (s *Search) copes(ctx context.Context, rate float64, most int) (bool, error) {
	if s.Progress != nil {
		s.Progress(rate)
	}
	rs, err := s.Requests(rate)
	if err != nil {
		return false, err
	}
	judged, slow := drive.Judged(short(rs, most), s.WarmUp)
	if judged == 0 { // none could be in time, or there is none
		most = math.MaxInt
		judged, slow = drive.Judged(rs, s.WarmUp)
	}
	if judged == 0 {
		return false, fmt.Errorf("no request arrives after the warm-up of %v at a rate of %.3g", s.WarmUp, rate)
	}
	res, err := Run(ctx, rs, Config{
		Replicas: s.Replicas, Clients: 1, Engines: s.Engines, WarmUp: s.WarmUp, Targets: s.Targets, Seed: 1,
		Channel: policy.Config{Policy: policy.Selection{Name: roundrobin.Name}},
		slow:    slow + 1, longest: most,
	})
	switch {
	case errors.Is(err, errSlow):
		return false, nil
	case err != nil:
		return false, err
	case res.FirstError != nil:
		return false, res.FirstError
	}
	return true, nil
}

// short are the requests whose prompts have at most so many tokens.
func short(rs []workload.Request, most int) []workload.Request {
	return slices.DeleteFunc(slices.Clone(rs), func(q workload.Request) bool { return q.PromptTokens > most })
}

// key names all that a capacity depends on: the workload as it is at the first rate, the engines, the fleet and
// what counts as good.
func (s *Search) key() (string, error) {
	rs, err := s.Requests(s.First)
	if err != nil {
		return "", err
	}
	c, err := Config{Replicas: s.Replicas, Clients: 1, Engines: s.Engines}.resolve()
	if err != nil {
		return "", err
	}
	h, good := sha256.New(), s.Targets.Full()
	fmt.Fprint(h, capacityVersion, s.Replicas, s.WarmUp, c.Engines, s.First, good.TTFT, good.TPOT, len(rs))
	var b []byte
	for i := range rs {
		r := &rs[i]
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(r.At))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.OutputTokens))
		b = binary.LittleEndian.AppendUint64(b, uint64(len(r.Segments)))
		for _, g := range r.Segments {
			b = binary.LittleEndian.AppendUint64(b, g.Seed)
			b = binary.LittleEndian.AppendUint64(b, uint64(g.From)<<32|uint64(g.Len))
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(len(r.Text)))
		b = append(append(b, r.Text...), r.ID...)
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// capacityFile is what stands in the file.
type capacityFile struct {
	Rate float64 `json:"rate"`
}

func remembered(file string) (float64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	var c capacityFile
	if json.Unmarshal(b, &c) != nil || !(c.Rate > 0) {
		return 0, false
	}
	return c.Rate, true
}

// remember writes the file as a whole or not at all. A cache that cannot be written is none.
func remember(file string, rate float64) {
	b, err := json.Marshal(capacityFile{rate})
	if err != nil || os.MkdirAll(filepath.Dir(file), 0o755) != nil {
		return
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".capacity-*")
	if err != nil {
		return
	}
	_, err = tmp.Write(b)
	if errors.Join(err, tmp.Close()) != nil || os.Rename(tmp.Name(), file) != nil {
		os.Remove(tmp.Name()) //nolint:errcheck // Nothing more can be done about it.
	}
}
