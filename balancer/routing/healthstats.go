package routing

// HealthStats are what a Router has done for the fleet's health in its life.
type HealthStats struct {
	Ejections [causes]int64 // by Cause
	Trials    int64         // requests that were sent to see whether a replica is back
}

// Health returns how often replicas were ejected and tried.
func (r *Router) Health() HealthStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return HealthStats{Ejections: r.wards.ejected, Trials: r.wards.trials}
}
