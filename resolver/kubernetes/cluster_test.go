package kubernetes

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// However long the API server is away, the next attempt is less than a second away.
func TestRetriesAreFrequent(t *testing.T) {
	pause := retry.DelayFunc()
	for range 100 {
		require.Less(t, pause(), time.Second)
	}
}

// A missing Role costs the API server few requests. A Role that is granted late, as while an API server starts,
// takes effect without delay.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n refusals
		refuse := func(times int) time.Duration {
			began := time.Now()
			for range times {
				n.attempt(t.Context(), apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no Role")))
			}
			return time.Since(began)
		}
		require.Zero(t, refuse(maxRefusals))
		require.Equal(t, 3*refusalPause, refuse(3))
		n.attempt(t.Context(), errors.New("connection refused"))
		require.Zero(t, refuse(maxRefusals))
		n.attempt(t.Context(), nil)
		require.Zero(t, refuse(1))
	})
}
