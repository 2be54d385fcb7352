package drive

import (
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/lab/workload"
)

// goodEnough is the goodput with which a fleet copes.
const goodEnough = 0.95

// precision ends the search for a capacity: the ratio of the bounds.
const precision = 1.03

// doublings bounds how far, up or down, it looks for its first bounds.
const doublings = 20

// Highest is the highest rate with which a fleet copes, by bisection to 3 %. The search begins at first, and goes
// no further than a million times above or below it.
func Highest(first float64, copes func(rate float64) (bool, error)) (float64, error) {
	good, bad, err := bracket(first, copes)
	for err == nil && bad > good*precision {
		var ok bool
		rate := (good + bad) / 2
		if ok, err = copes(rate); ok {
			good = rate
		} else {
			bad = rate
		}
	}
	if err != nil {
		return 0, err
	}
	return good, nil
}

// bracket returns a rate that a fleet copes with and one, twice as high, that it does not.
func bracket(first float64, copes func(rate float64) (bool, error)) (good, bad float64, err error) {
	rate := first
	up, err := copes(rate)
	for range doublings {
		if err != nil {
			return 0, 0, err
		}
		last := rate
		if up {
			rate *= 2
		} else {
			rate /= 2
		}
		var ok bool
		switch ok, err = copes(rate); {
		case err != nil:
		case up && !ok:
			return last, rate, nil
		case !up && ok:
			return rate, last, nil
		}
	}
	if err != nil {
		return 0, 0, err
	}
	return 0, 0, fmt.Errorf("it is not between %.3g and %.3g", min(rate, first), max(rate, first))
}

// Judged counts the requests after the warm-up, and how many of them may be too slow if the fleet copes.
func Judged(rs []workload.Request, warmUp time.Duration) (all, slow int) {
	for i := range rs {
		if rs[i].At >= warmUp {
			all++
		}
	}
	return all, int(float64(all) * (1 - goodEnough))
}
