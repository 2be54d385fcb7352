package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/warmpath/warmpath/balancer/policy"
)

var testService = service{name: "chat", namespace: "llm", port: "grpc"}

// slice returns an EndpointSlice with the port grpc, 50051.
func slice(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name, number := "grpc", int32(50051)
	return &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &number}},
	}
}

// pod returns the endpoint of a pod: its name, its uid, the last number of its address, and its conditions, each
// of which may be true, false and nil.
func pod(name, uid string, address int, isReady, serving, terminating *bool) discoveryv1.Endpoint {
	zone, node := "z1", "n1"
	return discoveryv1.Endpoint{
		Addresses:  []string{fmt.Sprintf("10.0.0.%d", address)},
		Conditions: discoveryv1.EndpointConditions{Ready: isReady, Serving: serving, Terminating: terminating},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: name, UID: types.UID(uid)},
		Zone:       &zone, NodeName: &node,
	}
}

var yes, no = new(true), new(false)

func up(name string, address int) discoveryv1.Endpoint {
	return pod(name, "uid-"+name, address, yes, yes, no)
}
func ends(name string, address int) discoveryv1.Endpoint {
	return pod(name, "uid-"+name, address, no, yes, yes)
}

// text is a fleet in short: the ids, each with its address' last number, with ! where it drains.
func short(fleet []policy.Attributes) (all []string) {
	for _, a := range fleet {
		s := a.ID
		if a.Draining {
			s += "!"
		}
		all = append(all, s)
	}
	return all
}

func TestAttributes(t *testing.T) {
	fleet, until, err := newUnion(testService).replicas(list(slice(up("a", 1), ends("b", 2))), time.Time{})
	require.NoError(t, err)
	require.True(t, until.IsZero())
	require.Equal(t, []policy.Attributes{
		{ID: "a", Address: "10.0.0.1:50051", Zone: "z1", Node: "n1", Instance: "uid-a"},
		{ID: "b", Address: "10.0.0.2:50051", Zone: "z1", Node: "n1", Instance: "uid-b", Draining: true},
	}, fleet)

	fleet, _, err = newUnion(testService).replicas(list(slice(discoveryv1.Endpoint{Addresses: []string{"10.0.0.3"}})), time.Time{})
	require.NoError(t, err)
	require.Equal(t, []policy.Attributes{{ID: "10.0.0.3:50051", Address: "10.0.0.3:50051"}}, fleet)
}

func list(all ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return all }

func TestConditions(t *testing.T) {
	for _, c := range []struct {
		ready, serving, terminating *bool
		want                        condition
	}{
		{nil, nil, nil, ready},
		{yes, nil, nil, ready},
		{yes, yes, no, ready},
		{no, no, no, notReady},
		{no, nil, nil, notReady},
		{no, yes, yes, draining},
		{yes, yes, yes, draining}, // publishNotReadyAddresses
		{nil, nil, yes, draining},
		{no, no, yes, absent},
		{no, nil, yes, absent},
	} {
		require.Equal(t, c.want, conditionOf(discoveryv1.EndpointConditions{Ready: c.ready, Serving: c.serving, Terminating: c.terminating}), c)
	}
}

// step is one observation of all slices, and the expected fleet.
type step struct {
	at     time.Duration
	slices []*discoveryv1.EndpointSlice
	want   []string
}

// A pod with two address families is one replica, whose address does not change while a slice is away.
func TestDualStack(t *testing.T) {
	e := up("a", 1)
	e.Addresses = []string{"fd00::1"}
	six, four := slice(e), slice(up("a", 1))
	six.AddressType = discoveryv1.AddressTypeIPv6
	u, now := newUnion(testService), time.Time{}
	at := func(all ...*discoveryv1.EndpointSlice) string {
		fleet, _, err := u.replicas(all, now)
		require.NoError(t, err)
		require.Len(t, fleet, 1)
		now = now.Add(hold / 2)
		return fleet[0].Address
	}
	require.Equal(t, "10.0.0.1:50051", at(six, four))
	require.Equal(t, "10.0.0.1:50051", at(six))
	require.Equal(t, "10.0.0.1:50051", at(six, four))
	require.Equal(t, "10.0.0.1:50051", at(six))
	require.Equal(t, "10.0.0.1:50051", at(six))
	require.Equal(t, "[fd00::1]:50051", at(six))
}

func TestHistories(t *testing.T) {
	a, b, c := up("a", 1), up("b", 2), up("c", 3)
	away := pod("b", "uid-b", 2, no, no, no)
	for name, steps := range map[string][]step{
		"moved, removed before it is added": {
			{0, list(slice(a, b), slice(c)), []string{"a", "b", "c"}},
			{1, list(slice(a), slice(c)), []string{"a", "b", "c"}},
			{2, list(slice(a), slice(b, c)), []string{"a", "b", "c"}},
			{2 * hold, list(slice(a), slice(b, c)), []string{"a", "b", "c"}},
		},
		"moved, added before it is removed": {
			{0, list(slice(a, b), slice(c)), []string{"a", "b", "c"}},
			{1, list(slice(a, b), slice(b, c)), []string{"a", "b", "c"}},
			{2, list(slice(a), slice(b, c)), []string{"a", "b", "c"}},
		},
		"one slice is split": {
			{0, list(slice(a, b, c)), []string{"a", "b", "c"}},
			{1, list(slice(a)), []string{"a", "b", "c"}},
			{2, list(slice(a), slice(b)), []string{"a", "b", "c"}},
			{hold, list(slice(a), slice(b), slice(c)), []string{"a", "b", "c"}},
		},
		"gone without a trace": {
			{0, list(slice(a, b)), []string{"a", "b"}},
			{1, list(slice(a)), []string{"a", "b"}},
			{hold, list(slice(a)), []string{"a", "b"}},
			{hold + 1, list(slice(a)), []string{"a"}},
		},
		"terminated, then gone": {
			{0, list(slice(a, b)), []string{"a", "b"}},
			{1, list(slice(a, ends("b", 2))), []string{"a", "b!"}},
			{2, list(slice(a)), []string{"a"}},
		},
		"in two slices, one of them old": {
			{0, list(slice(a, b), slice(ends("b", 2))), []string{"a", "b!"}},
			{1, list(slice(a, b), slice(away)), []string{"a", "b"}},
		},
		"not ready": {
			{0, list(slice(a, b)), []string{"a", "b"}},
			{1, list(slice(a, away)), []string{"a"}},
			{2, list(slice(a, b)), []string{"a", "b"}},
		},
		"none is ready any more": {
			{0, list(slice(b)), []string{"b"}},
			{1, list(slice(away)), []string{"b"}},
			{2, list(slice(away, pod("c", "uid-c", 3, no, no, no))), []string{"b"}},
			{3, list(slice(away, a)), []string{"a"}},
			{4, list(slice(away, ends("a", 1))), []string{"a!"}},
		},
		"a pod that comes back with its name": {
			{0, list(slice(a, b)), []string{"a", "b"}},
			{1, list(slice(a, ends("b", 2))), []string{"a", "b!"}},
			{2, list(slice(a, pod("b", "new", 4, no, no, no))), []string{"a"}},
			{3, list(slice(a, pod("b", "new", 4, yes, yes, no))), []string{"a", "b"}},
		},
		"a pod that comes back while a slice has the old one": {
			{0, list(slice(a, b)), []string{"a", "b"}},
			{1, list(slice(a, b), slice(pod("b", "new", 4, yes, yes, no))), []string{"a", "b"}},
			{2, list(slice(a), slice(pod("b", "new", 4, yes, yes, no))), []string{"a", "b"}},
		},
		"an address that another pod has": {
			{0, list(slice(a, b)), []string{"a", "b"}},
			{1, list(slice(a, pod("c", "uid-c", 2, yes, yes, no))), []string{"a", "c"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUnion(testService)
			for i, s := range steps {
				fleet, _, _ := u.replicas(s.slices, time.Time{}.Add(time.Hour+s.at))
				require.Equal(t, s.want, short(fleet), "step %d", i)
			}
		})
	}
}

// thousand returns 1,000 endpoints in ten slices.
func thousand() []*discoveryv1.EndpointSlice {
	all := make([]*discoveryv1.EndpointSlice, 10)
	for i := range 1000 {
		if i < len(all) {
			all[i] = slice()
		}
		e := up(fmt.Sprintf("pod-%03d", i), 0)
		e.Addresses = []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)}
		all[i%len(all)].Endpoints = append(all[i%len(all)].Endpoints, e)
	}
	return all
}

// Endpoints that are shuffled over the slices are in the fleet at every moment, in whatever order the slices are
// written.
func TestShuffled(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	u, seen, now := newUnion(testService), thousand(), time.Time{}
	want, _, err := u.replicas(seen, now)
	require.NoError(t, err)
	require.Len(t, want, 1000)
	for round := range 5 {
		next := thousand()
		for _, s := range next {
			s.Endpoints = nil
		}
		for _, s := range thousand() {
			for _, e := range s.Endpoints {
				to := next[random.IntN(len(next))]
				to.Endpoints = append(to.Endpoints, e)
			}
		}
		for _, i := range random.Perm(len(next)) {
			seen[i] = next[i]
			now = now.Add(hold / time.Duration(len(next)))
			fleet, _, err := u.replicas(seen, now)
			require.NoError(t, err)
			require.Equal(t, want, fleet, "round %d", round)
		}
	}
}
