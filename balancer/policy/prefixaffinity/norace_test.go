//go:build !race

package prefixaffinity

const raceAllocs = 0
