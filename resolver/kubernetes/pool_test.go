package kubernetes

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
)

// readPool reads an InferencePool as the API server sends it.
func readPool(t *testing.T, text string) pool {
	t.Helper()
	var p unstructured.Unstructured
	require.NoError(t, json.Unmarshal([]byte(text), &p.Object))
	return poolOf(&p)
}

const onePort = `{"spec": {"selector": {"matchLabels": {"app": "chat"}}, "targetPorts": [{"number": 8000}]}}`

// aPod is a ready pod of onePort, changed.
func aPod(name, ip string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "inference", Name: name, UID: "uid-of-x", Labels: map[string]string{"app": "chat"},
			Annotations: map[string]string{},
		},
		Status: corev1.PodStatus{
			PodIP:      ip,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func annotated(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(pairs); i += 2 {
			p.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func labelled(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(pairs); i += 2 {
			p.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func conditioned(kind corev1.PodConditionType, status corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: kind, Status: status}} }
}

func deleted(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

func TestPoolReplicas(t *testing.T) {
	replica := func(name, ip, port string, changes ...func(*policy.Attributes)) policy.Attributes {
		a := policy.Attributes{ID: name + ":" + port, Address: ip + ":" + port, Instance: "uid-of-x"}
		for _, change := range changes {
			change(&a)
		}
		return a
	}
	two := strings.Replace(onePort, `{"number": 8000}`, `{"number": 8000}, {"number": 8001}`, 1)
	for _, c := range []struct {
		name, pool string
		pods       []*corev1.Pod
		want       []policy.Attributes
		wrong      []string
	}{
		{name: "none", pool: onePort},
		{
			name: "several", pool: onePort,
			pods: []*corev1.Pod{aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2")},
			want: []policy.Attributes{replica("a", "10.0.0.1", "8000"), replica("b", "10.0.0.2", "8000")},
		},
		{
			name: "all labels of the selector", pool: strings.Replace(onePort, `"app": "chat"`, `"app": "chat", "role": ""`, 1),
			pods: []*corev1.Pod{
				aPod("a", "10.0.0.1"), aPod("b", "10.0.0.2", labelled("role", "")), aPod("c", "10.0.0.3", labelled("role", "x")),
			},
			want: []policy.Attributes{replica("b", "10.0.0.2", "8000")},
		},
		{name: "an empty selector", pool: `{"spec": {"targetPorts": [{"number": 8000}]}}`, pods: []*corev1.Pod{aPod("a", "10.0.0.1")}},
		{
			name: "not ready", pool: onePort,
			pods: []*corev1.Pod{
				aPod("a", "10.0.0.1", conditioned(corev1.PodReady, corev1.ConditionFalse)),
				aPod("b", "10.0.0.2", conditioned(corev1.PodReady, corev1.ConditionUnknown)),
				aPod("c", "10.0.0.3", conditioned(corev1.ContainersReady, corev1.ConditionTrue)),
				aPod("d", ""),
				aPod("e", "10.0.0.5", deleted, conditioned(corev1.PodReady, corev1.ConditionFalse)),
			},
		},
		{
			name: "deleted and still ready", pool: onePort, pods: []*corev1.Pod{aPod("a", "10.0.0.1", deleted)},
			want: []policy.Attributes{replica("a", "10.0.0.1", "8000", func(a *policy.Attributes) { a.Draining = true })},
		},
		{
			name: "node, zone, IPv6", pool: onePort,
			pods: []*corev1.Pod{aPod("a", "2001:db8::1", labelled("topology.kubernetes.io/zone", "z1"), func(p *corev1.Pod) { p.Spec.NodeName = "n1" })},
			want: []policy.Attributes{{ID: "a:8000", Address: "[2001:db8::1]:8000", Instance: "uid-of-x", Node: "n1", Zone: "z1"}},
		},
		{
			name: "each port is a replica", pool: two, pods: []*corev1.Pod{aPod("a", "10.0.0.1")},
			want: []policy.Attributes{replica("a", "10.0.0.1", "8000"), replica("a", "10.0.0.1", "8001")},
		},
		{
			name: "ports of other roles", pool: strings.Replace(onePort, `{"number": 8000}`,
				`{"number": 9000, "role": "Metrics"}, {"number": 8000, "role": "Serving"}, {"number": 8001, "role": ""}`, 1),
			pods: []*corev1.Pod{aPod("a", "10.0.0.1")},
			want: []policy.Attributes{replica("a", "10.0.0.1", "8000"), replica("a", "10.0.0.1", "8001")},
		},
		{
			name: "active ports", pool: two,
			pods: []*corev1.Pod{aPod("a", "10.0.0.1", annotated(activePorts, "8001, 9000,x")), aPod("b", "10.0.0.2", annotated(activePorts, ""))},
			want: []policy.Attributes{replica("a", "10.0.0.1", "8001")},
		},
		{
			name: "events of each port", pool: two,
			pods: []*corev1.Pod{aPod("a", "10.0.0.1", annotated("warmpath.dev/kv_events", "tcp://HOST:5557?topic=kv", "warmpath.dev/kv_events_replay", "tcp://HOST:6557"))},
			want: []policy.Attributes{
				replica("a", "10.0.0.1", "8000", func(a *policy.Attributes) {
					a.KVEvents, a.KVEventsReplay = "tcp://HOST:5557?topic=kv", "tcp://HOST:6557"
				}),
				replica("a", "10.0.0.1", "8001", func(a *policy.Attributes) {
					a.KVEvents, a.KVEventsReplay = "tcp://HOST:5558?topic=kv", "tcp://HOST:6558"
				}),
			},
		},
		{
			name: "events of each port and rank", pool: two,
			pods: []*corev1.Pod{aPod("a", "10.0.0.1", annotated("warmpath.dev/kv_events", "tcp://HOST:5557?topic=a", "warmpath.dev/ranks", "4"))},
			want: []policy.Attributes{
				replica("a", "10.0.0.1", "8000", func(a *policy.Attributes) { a.KVEvents, a.Ranks = "tcp://HOST:5557?topic=a", 4 }),
				replica("a", "10.0.0.1", "8001", func(a *policy.Attributes) { a.KVEvents, a.Ranks = "tcp://HOST:5561?topic=a", 4 }),
			},
		},
		{
			name: "events by gRPC", pool: two, pods: []*corev1.Pod{aPod("a", "10.0.0.1", annotated("warmpath.dev/kv_events", "grpc:vllm"))},
			want: []policy.Attributes{
				replica("a", "10.0.0.1", "8000", func(a *policy.Attributes) { a.KVEvents = "grpc:vllm" }),
				replica("a", "10.0.0.1", "8001", func(a *policy.Attributes) { a.KVEvents = "grpc:vllm" }),
			},
		},
		{
			name: "no room for the events of a port", pool: two,
			pods: []*corev1.Pod{aPod("a", "10.0.0.1", annotated("warmpath.dev/kv_events", "tcp://10.0.0.1:65535"))},
			want: []policy.Attributes{
				replica("a", "10.0.0.1", "8000", func(a *policy.Attributes) { a.KVEvents = "tcp://10.0.0.1:65535" }),
				replica("a", "10.0.0.1", "8001"),
			},
			wrong: []string{`pod inference/a: port 8001: kv_events: "tcp://10.0.0.1:65536": port "65536" is not a number from 1 to 65535`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, wrong := readPool(t, c.pool).replicas(c.pods)
			require.Equal(t, append([]policy.Attributes{}, c.want...), got)
			require.Equal(t, c.wrong, wrong)
		})
	}
}

func TestDeclare(t *testing.T) {
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		want  policy.Attributes
		wrong []string
	}{
		{name: "nothing", pod: aPod("a", "")},
		{
			name: "every field", pod: aPod("a", "", annotated("warmpath.dev/weight", "1.5", "warmpath.dev/ranks", "2", "warmpath.dev/models", "m, n",
				"warmpath.dev/adapters", "x", "warmpath.dev/kv_events", "tcp://HOST:1", "warmpath.dev/kv_events_replay", "tcp://HOST:2",
				"warmpath.dev/role", "decode", "warmpath.dev/pair", "r7/tp4", "warmpath.dev/kv_bootstrap", "b:1", "warmpath.dev/kv_engine_id", "e")),
			want: policy.Attributes{Weight: 1.5, Ranks: 2, Models: []string{"m", "n"}, Adapters: []string{"x"},
				KVEvents: "tcp://HOST:1", KVEventsReplay: "tcp://HOST:2", Role: policy.RoleDecode, Pair: "r7/tp4", KVBootstrap: "b:1", KVEngineID: "e"},
		},
		{name: "label", pod: aPod("a", "", labelled("warmpath.dev/weight", "2")), want: policy.Attributes{Weight: 2}},
		{
			name: "annotation before label", pod: aPod("a", "", labelled("warmpath.dev/weight", "2"), annotated("warmpath.dev/weight", "3")),
			want: policy.Attributes{Weight: 3},
		},
		{name: "others' names", pod: aPod("a", "", annotated("other.dev/weight", "heavy", "warmpath.dev.x/weight", "y"))},
		{
			name: "mistakes", pod: aPod("a", "", annotated("warmpath.dev/weight", "heavy", "warmpath.dev/ranks", "1.5", "warmpath.dev/models", "m,",
				"warmpath.dev/adapters", "", "warmpath.dev/kv_events", "udp://x:1", "warmpath.dev/kv_events_replay", "tcp://HOST:2", "warmpath.dev/wieght", "2")),
			wrong: []string{
				`pod inference/a: annotation warmpath.dev/weight: "heavy": strconv.ParseFloat: parsing "heavy": invalid syntax`,
				`pod inference/a: annotation warmpath.dev/ranks: "1.5": strconv.Atoi: parsing "1.5": invalid syntax`,
				`pod inference/a: annotation warmpath.dev/models: "m,": models: name 2 is empty`,
				`pod inference/a: annotation warmpath.dev/adapters: "": adapters: name 1 is empty`,
				`pod inference/a: annotation warmpath.dev/kv_events: "udp://x:1": kv_events: "udp://x:1": want tcp://host:port, grpc:NAME or sources:NAME`,
				`pod inference/a: annotation warmpath.dev/kv_events_replay: "tcp://HOST:2": kv_events_replay: there is no kv_events`,
				`pod inference/a: annotation warmpath.dev/wieght: "2": there is no such field`,
			},
		},
		{
			name: "out of bounds", pod: aPod("a", "", labelled("warmpath.dev/weight", "NaN", "warmpath.dev/ranks", "2000")),
			wrong: []string{
				`pod inference/a: label warmpath.dev/weight: "NaN": weight: NaN is not a finite number of at least 0`,
				`pod inference/a: label warmpath.dev/ranks: "2000": ranks: 2000 are more than 256`,
			},
		},
		{
			name: "where the server would listen", pod: aPod("a", "", annotated("warmpath.dev/kv_events", "tcp://*:5557")),
			wrong: []string{
				`pod inference/a: annotation warmpath.dev/kv_events: "tcp://*:5557": kv_events: the source of a replica that declares it itself is an address to dial: want tcp://HOST:port`,
			},
		},
		{
			name: "another host", pod: aPod("a", "", annotated("warmpath.dev/kv_events", "tcp://HOST:1", "warmpath.dev/kv_events_replay", "tcp://169.254.169.254:80")),
			want: policy.Attributes{KVEvents: "tcp://HOST:1"},
			wrong: []string{
				`pod inference/a: annotation warmpath.dev/kv_events_replay: "tcp://169.254.169.254:80": kv_events_replay: "169.254.169.254" is not the replica's host: use HOST, or add it to the deployment's register_event_hosts if the replica registers`,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.ID, c.want.Address = "a", "10.0.0.1:1"
			got := policy.Attributes{ID: "a", Address: "10.0.0.1:1"}
			require.Equal(t, c.wrong, declare(&got, &c.pod.ObjectMeta))
			require.Equal(t, c.want, got)
		})
	}
}

// A problem of a declaration is logged once while it lasts.
func TestComplaints(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	var c complaints
	for _, now := range [][]string{{"pod a"}, {"pod a", "pod b", "pod b"}, {"pod b"}, {"pod a", "pod b"}, nil} {
		c.log(log, now)
	}
	require.Equal(t, 2, strings.Count(out.String(), "pod a"), "%s", &out)
	require.Equal(t, 1, strings.Count(out.String(), "pod b"), "%s", &out)
	require.Empty(t, c)
}

// Only the fields of a pod that count are kept.
func TestPodsAreTrimmed(t *testing.T) {
	pods := newObjects[*corev1.Pod](make(chan struct{}, 1))
	whole := func(name string) *corev1.Pod {
		return aPod(name, "10.0.0.1", func(p *corev1.Pod) {
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
			p.Spec = corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "engine"}}}
		})
	}
	require.NoError(t, pods.Replace([]any{whole("a")}, "1"))
	require.NoError(t, pods.Add(whole("b")))
	want := func(p *corev1.Pod) { p.Spec.NodeName = "n1" }
	require.Equal(t, []*corev1.Pod{aPod("a", "10.0.0.1", want), aPod("b", "10.0.0.1", want)}, pods.all())
}

// Whatever a pod declares, its replicas are valid in a fleet file.
func FuzzDeclared(f *testing.F) {
	f.Add("2", "3", "m, n", "tcp://HOST:65530?topic=kv", "tcp://[::1]:1")
	f.Add("1e400", "-1", ",", "tcp://*:5557?bind=::1", "tcp://HOST:65535")
	f.Add("", "1024", "", "grpc:vllm", "tcp://:")
	f.Fuzz(func(t *testing.T, weight, ranks, models, events, replay string) {
		p := readPool(t, strings.Replace(onePort, "8000}", `8000}, {"number": 8001}`, 1))
		fleet, _ := p.replicas([]*corev1.Pod{aPod("a", "10.0.0.1", annotated("warmpath.dev/weight", weight, "warmpath.dev/ranks", ranks,
			"warmpath.dev/models", models, "warmpath.dev/kv_events", events, "warmpath.dev/kv_events_replay", replay))})
		require.Len(t, fleet, 2)
		for _, a := range fleet {
			require.NoError(t, admission.Admit(&a))
		}
	})
}
