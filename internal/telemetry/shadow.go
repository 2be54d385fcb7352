package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/warmpath/warmpath/balancer/routing"
)

// Attribute keys of a shadow policy's decision.
const (
	KeyShadowPolicy        = attribute.Key("warmpath.shadow.policy")
	KeyShadowReason        = attribute.Key("warmpath.shadow.reason")
	KeyShadowReplica       = attribute.Key("warmpath.shadow.replica") // absent: it found none
	KeyShadowMatchedTokens = attribute.Key("warmpath.shadow.matched_tokens")
	KeyShadowDiffers       = attribute.Key("warmpath.shadow.differs")
)

// appendShadow adds what a shadow policy decided on the same request.
func appendShadow(kvs []attribute.KeyValue, q *routing.Request, d *routing.Decision) []attribute.KeyValue {
	policy, shadow, _, ok := q.Shadow()
	if !ok {
		return kvs
	}
	kvs = append(kvs, KeyShadowPolicy.String(policy), KeyShadowDiffers.Bool(shadow.Replica != d.Replica))
	if shadow.Replica != nil {
		kvs = append(kvs, KeyShadowReplica.String(shadow.Replica.ID), KeyShadowReason.String(string(shadow.Reason)),
			KeyShadowMatchedTokens.Int(shadow.MatchedTokens))
	}
	return kvs
}

// Shadowed counts what a shadow policy decided on a request, if there is one.
func (r *Recorder) Shadowed(ctx context.Context, policy string, q *routing.Request, d *routing.Decision) {
	name, shadow, actual, ok := q.Shadow()
	if !ok || !r.shadowed.Enabled(ctx) {
		return
	}
	both := r.attributes(KeyPolicy.String(policy), KeyShadowPolicy.String(name))
	r.shadow.Add(ctx, int64(shadow.MatchedTokens), both)
	r.actual.Add(ctx, int64(actual), both)
	differs := KeyShadowDiffers.Bool(shadow.Replica != d.Replica)
	r.shadowed.Add(ctx, 1, r.attributes(KeyPolicy.String(policy), KeyShadowPolicy.String(name), differs))
}
