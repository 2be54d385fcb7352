package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// ejectionOf returns the outlier detection of a Router of the config.
func ejectionOf(t *testing.T, c *policy.Config) (e policy.Ejection) {
	t.Helper()
	r, err := router.FromConfig(c, func(o *router.Options) { e = *o.Ejection })
	require.NoError(t, err)
	require.NoError(t, r.Close())
	return e
}

func TestEjectionConfig(t *testing.T) {
	c, err := policy.ParseConfig([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, policy.Ejection{}.WithDefaults(), ejectionOf(t, c))
	require.Equal(t, policy.Ejection{}.WithDefaults(), ejectionOf(t, &policy.Config{}))
	require.Equal(t, policy.Duration(30*time.Second), c.DrainGrace)

	c, err = policy.ParseYAML([]byte("drain_grace: 1m\nejection: {failures: off, slow_start: \"off\"}"))
	require.NoError(t, err)
	require.EqualValues(t, policy.Off, ejectionOf(t, c).Failures)
	require.EqualValues(t, policy.Off, ejectionOf(t, c).SlowStart)
	require.Equal(t, policy.Duration(time.Minute), c.DrainGrace)

	c, err = policy.ParseYAML([]byte("ejection: {failures: 3, late_min: 1s, base_time: 20m, max_share: 1}"))
	require.NoError(t, err)
	e := ejectionOf(t, c)
	require.EqualValues(t, 3, e.Failures)
	require.Equal(t, policy.Duration(20*time.Minute), e.BaseTime)

	for text, field := range map[string]string{
		"ejection: {failures: -1}":    "ejection.failures",
		"ejection: {failures: 1001}":  "ejection.failures",
		"ejection: {failures: 2.5}":   "ejection.failures",
		"ejection: {late_min: -1s}":   "ejection.late_min",
		"ejection: {base_time: 2h}":   "ejection.base_time",
		"ejection: {slow_start: -1s}": "ejection.slow_start",
		"ejection: {max_share: 1.1}":  "ejection.max_share",
		"ejection: {max_share: -0.1}": "ejection.max_share",
		"ejection: {slow_start: 2h}":  "ejection.slow_start",
		"ejection: {nonsense: 1}":     "nonsense",
		"ejection: {failures: many}":  "ejection.failures",
		"drain_grace: 25h":            "drain_grace",
	} {
		_, err := policy.ParseYAML([]byte(text))
		require.ErrorContains(t, err, field, text)
	}
}
