//go:build !race

package kvaware

const raceAllocs = 0
