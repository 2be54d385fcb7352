package balancer

import (
	"log/slog"

	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/telemetry"
)

func (b *lb) recorder() *telemetry.Recorder {
	if b.handle != nil {
		return b.handle.Telemetry
	}
	return telemetry.Default()
}

// observe records the metrics of the Router in use, and of no other. Called with
// mu held.
func (b *lb) observe(binding *call.Binding) {
	if b.unwatch != nil {
		b.unwatch()
		b.unwatch = nil
	}
	stop, err := binding.Telemetry.Watch(binding.Policy, binding.Router)
	if err != nil {
		logger.Warningf("metrics of the router are not observed: %v", err)
		return
	}
	stopHealth, err := binding.Telemetry.WatchHealth(binding.Policy, binding.Router)
	if err != nil {
		logger.Warningf("metrics of the replicas' health are not observed: %v", err)
		stopHealth = func() {}
	}
	b.unwatch = func() {
		stop()
		stopHealth()
	}
}

func (b *lb) logger() *slog.Logger {
	if h := b.owner.Load(); h != nil {
		return h.Logger
	}
	return slog.Default()
}
