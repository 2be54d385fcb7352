package kubernetes

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestTargets(t *testing.T) {
	for text, want := range map[string]service{
		"warmpath-kubernetes:///chat.llm:grpc":                      {name: "chat", namespace: "llm", port: "grpc"},
		"warmpath-kubernetes:///chat.llm:50051":                     {name: "chat", namespace: "llm", port: "50051"},
		"warmpath-kubernetes:///chat:50051":                         {name: "chat", port: "50051"},
		"warmpath-kubernetes:///chat:grpc?pods=app=chat,role!=test": {name: "chat", port: "grpc", pods: "app=chat,role!=test"},
	} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		q, err := parseService(*u)
		require.NoError(t, err)
		require.Equal(t, want, q)
	}
	for text, want := range map[string]string{
		"warmpath-kubernetes://chat.llm:50051":                 "three slashes",
		"warmpath-kubernetes:chat.llm:50051":                   "three slashes",
		"warmpath-kubernetes:///chat.llm":                      "number of a port",
		"warmpath-kubernetes:///chat.llm:0":                    "number of a port",
		"warmpath-kubernetes:///chat.llm:65536":                "number of a port",
		"warmpath-kubernetes:///chat.llm.svc:grpc":             "not a DNS name",
		"warmpath-kubernetes:///chat.llm.svc.cluster.local:1":  "not a DNS name",
		"warmpath-kubernetes:///:grpc":                         "name",
		"warmpath-kubernetes:///chat.:grpc":                    "namespace",
		"warmpath-kubernetes:///Chat.llm:grpc":                 "lower case",
		"warmpath-kubernetes:///chat.llm:grpc#x":               "three slashes",
		"warmpath-kubernetes:///a/b.llm:grpc":                  "name",
		"warmpath-kubernetes:///chat.llm:grpc?x=1":             "?pods=SELECTOR",
		"warmpath-kubernetes:///chat.llm:grpc?":                "?pods=SELECTOR",
		"warmpath-kubernetes:///chat.llm:grpc?pods=":           "?pods=SELECTOR",
		"warmpath-kubernetes:///chat.llm:grpc?pods=app%3Da&x=": "valid label",
		"warmpath-kubernetes:///chat.llm:grpc?pods=a=b=c":      "pods=a=b=c",
		"warmpath-kubernetes:///chat.llm:grpc?pods=%zz":        "%zz",
	} {
		u, err := url.Parse(text)
		require.NoError(t, err, text)
		_, err = parseService(*u)
		require.ErrorContains(t, err, want, text)
	}
}

// A target that is accepted names a Service that may exist, and one of its ports.
func FuzzServiceTarget(f *testing.F) {
	for _, s := range []string{
		"warmpath-kubernetes:///chat.llm:grpc", "warmpath-kubernetes:///chat:1?pods=a=b", "warmpath-kubernetes:chat:1",
		"warmpath-kubernetes:///a.b.c:1", "warmpath-kubernetes:///%00:1", "warmpath-kubernetes:///chat:-1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		q, err := parseService(*u)
		if err != nil {
			require.Nil(t, q)
			return
		}
		s := q.(service)
		require.Empty(t, validation.IsDNS1123Label(s.name))
		require.NotEmpty(t, s.port)
		require.False(t, strings.ContainsAny(s.namespace, "./:"))
	})
}
