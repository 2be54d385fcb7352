//go:build race

package tests

const (
	raceEnabled = true
	slowed      = 10 // how many times longer what is measured may take
)
