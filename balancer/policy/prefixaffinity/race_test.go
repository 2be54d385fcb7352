//go:build race

package prefixaffinity

// Under the race detector a sync.Pool drops what it is given at random.
const raceAllocs = 50
