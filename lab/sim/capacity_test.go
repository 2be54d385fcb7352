package sim

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// search is the search for the capacity of a fleet of two.
func search(tried *int) Search {
	s := Search{
		First: 6, Replicas: 2, WarmUp: 5 * time.Second,
		Traffic: Traffic{Workload: workload.Spec{Name: "nothing-shared", Duration: 30 * time.Second}},
	}
	if tried != nil {
		s.Progress = func(float64) { *tried++ }
	}
	return s
}

// fileOf is the file that stores the capacity.
func fileOf(s Search) (string, error) {
	c, err := Config{Replicas: s.Replicas, Clients: 1, Engines: s.Engines}.resolve()
	if err != nil {
		return "", err
	}
	return s.file(c)
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	tried := 0
	s := search(&tried)
	s.Dir = filepath.Join(t.TempDir(), "warmpath")
	rate, err := Capacity(t.Context(), s)
	require.NoError(t, err)
	require.Positive(t, tried)
	for factor, want := range map[float64]bool{1: true, precision: false} {
		c, err := Config{Replicas: 2, Clients: 1, WarmUp: s.WarmUp, Channel: named("round_robin"), Seed: 1, longest: math.MaxInt}.resolve()
		require.NoError(t, err)
		ok, err := s.copes(t.Context(), c, rate*factor)
		require.NoError(t, err)
		require.Equal(t, want, ok, factor)
	}

	tried = 0
	again, err := Capacity(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, rate, again)
	require.Zero(t, tried, "the result is stored")

	files, err := filepath.Glob(filepath.Join(s.Dir, "*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NoError(t, os.WriteFile(files[0], []byte("{"), 0o600))
	again, err = Capacity(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, rate, again)
	require.Positive(t, tried, "a file that is damaged is none")

	key, err := fileOf(s)
	require.NoError(t, err)
	s.Engines = []enginesim.Config{{KVTokens: 100_000}}
	other2, err := fileOf(s)
	require.NoError(t, err)
	require.NotEqual(t, key, other2)
}

// The definition of goodput decides the capacity of a fleet.
func TestCapacityByTargets(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	s := search(nil)
	key, err := fileOf(s)
	require.NoError(t, err)
	rate, err := Capacity(t.Context(), s)
	require.NoError(t, err)
	s.Targets = drive.Targets{TTFT: drive.GoodTTFT, TPOT: drive.GoodTPOT}
	same, err := fileOf(s)
	require.NoError(t, err)
	require.Equal(t, key, same)
	s.Targets = drive.Targets{TPOT: 30 * time.Millisecond}
	other, err := fileOf(s)
	require.NoError(t, err)
	require.NotEqual(t, key, other)
	less, err := Capacity(t.Context(), s)
	require.NoError(t, err)
	require.Less(t, less, rate*0.8)
}

func TestCapacityErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Capacity(ctx, search(nil))
	require.ErrorIs(t, err, context.Canceled)

	s := search(nil)
	s.WarmUp = time.Hour
	_, err = Capacity(t.Context(), s)
	require.ErrorContains(t, err, "warm-up")

	s = search(nil)
	s.Engines = []enginesim.Config{{KVTokens: 1000}}
	_, err = Capacity(t.Context(), s)
	require.Error(t, err)
}
