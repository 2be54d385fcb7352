package server

import (
	"context"
	"log/slog"
)

// announce logs one line on the deployment: its policy, the settings that differ from their defaults, session keys and
// modes.
func announce(log *slog.Logger, dc *Deployment, notServing string) {
	attrs := dc.Config.Attrs()
	for _, source := range []struct {
		name string
		has  bool
	}{
		{"target", dc.Target != ""}, {"register", dc.Register}, {"health_check", dc.HealthCheck != nil},
		{"load_poll", dc.LoadPoll != nil}, {"replica_tls", dc.ReplicaTLS != nil},
	} {
		if source.has {
			attrs = append(attrs, slog.Bool(source.name, true))
		}
	}
	attrs = append(attrs, slog.Int("replicas", len(dc.Replicas)))
	log.LogAttrs(context.Background(), slog.LevelInfo, "warmpath: the deployment starts", attrs...)
	if notServing != "" {
		log.Warn("warmpath: the deployment does not serve", "reason", notServing)
	}
}

// warnNoKey logs how requests get the key that the policy needs. Called once.
func (k *picks) warnNoKey(policy string) {
	k.log.Warn("warmpath: requests carry no key that the policy routes by, and are routed by load; logged once",
		"policy", policy, "grpc", "set key.session or key.prompt",
		"http", "send the header named in http.session_header, or a body with a prompt")
}
