// Package race lets a test do less under the race detector, which slows programs down tenfold. Races show in the first
// repeats; what needs many is tested without the detector.
package race

// Of returns full, and few under the race detector.
func Of[T any](full, few T) T {
	if Enabled {
		return few
	}
	return full
}
