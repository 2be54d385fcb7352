// Package regression keeps means and covariances of two quantities that forget exponentially.
package regression

// memory is the number of samples after which an old one counts 1/e.
const memory = 256

// Pair is what samples of (X, Y) showed. The zero value has none.
type Pair struct {
	N          float64 // samples that count
	X, Y       float64 // means
	XX, XY, YY float64 // (co)variances
}

// Add takes one sample into account.
func (p *Pair) Add(x, y float64) {
	p.N = min(p.N+1, memory)
	a := 1 / p.N
	dx, dy := x-p.X, y-p.Y
	p.X += a * dx
	p.Y += a * dy
	p.XX = (1 - a) * (p.XX + a*dx*dx)
	p.XY = (1 - a) * (p.XY + a*dx*dy)
	p.YY = (1 - a) * (p.YY + a*dy*dy)
}
