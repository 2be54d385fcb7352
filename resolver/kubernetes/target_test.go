package kubernetes

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
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
		"warmpath-kubernetes:///chat.llm":                      "want a port",
		"warmpath-kubernetes:///chat.llm:0":                    "want a port",
		"warmpath-kubernetes:///chat.llm:65536":                "want a port",
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
