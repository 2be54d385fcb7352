package tests

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// closing is a policy with a resource from its first decision until its Close.
type closing struct {
	*closings
	begin sync.Once
	used  bool
}

// closings counts the policies in use. Their Close waits for wait, if it is not nil.
type closings struct {
	open atomic.Int64
	wait chan struct{}
}

func (p *closing) choose(q *policy.Request, v policy.View) policy.Decision {
	p.begin.Do(func() { p.used = true; p.open.Add(1) })
	return policy.To(v.LeastLoaded(q), policy.ReasonLeastLoaded)
}

func (p *closing) close() error {
	if !p.used { // created only to check a config
		return nil
	}
	if p.wait != nil {
		<-p.wait
	}
	p.open.Add(-1)
	return nil
}

var closingPlain, closingHanging = &closings{}, &closings{}

func init() {
	for name, c := range map[string]*closings{"closing_of_tests": closingPlain, "hanging_of_tests": closingHanging} {
		policy.Register(name, func(struct{}) (policy.Policy, error) {
			p := &closing{closings: c}
			return policy.Policy{Choose: p.choose, Close: p.close}, nil
		})
	}
}

// Issue 12.11: a policy is closed with its channel, whether the channel is idle or not.
func TestPolicyIsClosedWithItsChannel(t *testing.T) {
	rs := replicas(t, 1)
	own := []client.Option{client.WithConfig(`{"policy":{"closing_of_tests":{}}}`)}
	for _, how := range []string{"New", "DialOptions"} {
		t.Run(how, func(t *testing.T) {
			cc := dialled(t, how, target(rs...), own)
			where(t, deadline(t), cc, "x")
			require.EqualValues(t, 1, closingPlain.open.Load())
			began := time.Now()
			require.NoError(t, cc.Close())
			if time.Since(began) < time.Second { // Close waits no longer for a policy
				require.Zero(t, closingPlain.open.Load())
			}
			eventually(t, "it is closed", func() bool { return closingPlain.open.Load() == 0 })
		})
		t.Run(how+" asleep", func(t *testing.T) {
			cc := dialled(t, how, target(rs...), own, grpc.WithIdleTimeout(50*time.Millisecond))
			for range 2 {
				where(t, deadline(t), cc, "x")
				sleeps(t, cc)
				require.EqualValues(t, 1, closingPlain.open.Load(), "it keeps what it has learned")
			}
			require.NoError(t, cc.Close())
			eventually(t, "it is closed", func() bool { return closingPlain.open.Load() == 0 })
		})
	}
}

// Issue 12.11: a policy whose Close hangs does not keep the channel from closing, and the log reports it.
func TestPolicyThatHangsInClose(t *testing.T) {
	rs := replicas(t, 1)
	closingHanging.wait = make(chan struct{})
	var log logged
	cc := dialled(t, "New", target(rs...), []client.Option{client.WithConfig(`{"policy":{"hanging_of_tests":{}}}`), client.WithLogger(log.logger())})
	where(t, deadline(t), cc, "x")
	require.NoError(t, cc.Close())
	require.EqualValues(t, 1, closingHanging.open.Load())
	require.Equal(t, 1, strings.Count(log.String(), "closing the policy takes longer than"), log.String())
	close(closingHanging.wait)
	eventually(t, "it is closed", func() bool { return closingHanging.open.Load() == 0 })
}
