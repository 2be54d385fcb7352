//go:build race

package enginesim

func init() { raceEnabled = true }
