package cacheview

// How what replicas say they had cached corrects what they are believed to hold.
const (
	judged   = 32   // requests between two judgements
	lacking  = 0.75 // of what was believed: below, too much is
	agreeing = 0.95 // above, it is right
	shrink   = 0.8
	grow     = 1.1
	minHeld  = 1024 // blocks; a capacity is corrected to no less
)

// Accuracy tells how well beliefs fit. Everything counts up.
type Accuracy struct {
	Requests        int64 // that told how much they had cached
	PredictedTokens int64 // believed to be cached there
	MeasuredTokens  int64 // of them, really cached
}

// Accuracy returns the counts so far.
func (x *Index) Accuracy() Accuracy {
	return Accuracy{
		Requests:        x.measured.requests.Load(),
		PredictedTokens: x.measured.predicted.Load(),
		MeasuredTokens:  x.measured.measured.Load(),
	}
}

// Measured says how many tokens of a request that was Routed were believed to be
// cached on the rank, and how many were. Where nobody tells what is there, and it is
// time and again much less, the list of what was routed there is shortened; it grows
// again while the two agree.
func (x *Index) Measured(m *Member, rank, predicted, measured int) {
	measured = min(measured, predicted) // what others routed there is no fault
	x.measured.requests.Add(1)
	x.measured.predicted.Add(int64(predicted))
	x.measured.measured.Add(int64(measured))
	if predicted == 0 || m.told.Load() {
		return
	}
	own := m.own(rank)
	own.mu.Lock()
	defer own.mu.Unlock()
	own.seen++
	own.predicted += float64(predicted)
	own.measured += float64(measured)
	if own.seen < judged {
		return
	}
	right := own.measured / own.predicted
	own.seen, own.predicted, own.measured = 0, 0, 0
	switch {
	case right < lacking:
		if own.most == 0 {
			own.most = x.blocks.Stats().Blocks
		}
		own.most = max(int(float64(own.most)*shrink), minHeld)
	case right > agreeing && own.most > 0:
		own.most = int(float64(own.most) * grow)
		if own.most > x.blocks.Stats().Blocks {
			own.most = 0
		}
	default:
		return
	}
	x.measured.corrections.Add(1)
}
