package kvevents

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadSource(t *testing.T) {
	at := func(host string, port uint64) pb {
		return pb{}.bytes(1, []byte(host)).varint(2, port).bytes(3, []byte("tcp"))
	}
	for name, c := range map[string]struct {
		msg  pb
		want found
		ok   bool
	}{
		"message":  {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 5557)).bytes(3, []byte("kv")).bytes(4, []byte("tcp://n1:5558")).varint(5, 2), found{"n1:5557", "n1:5558", "kv", 2}, true},
		"text":     {pb{}.bytes(1, []byte("zmq")).bytes(2, []byte("tcp://n1:5557")).bytes(6, []byte("msgpack")), found{"n1:5557", "", "", 0}, true},
		"wildcard": {pb{}.bytes(1, []byte("zmq")).bytes(2, at("*", 5557)).bytes(4, []byte("tcp://0.0.0.0:5558")), found{"10.0.0.1:5557", "10.0.0.1:5558", "", 0}, true},
		"grpc":     {pb{}.bytes(1, []byte("grpc")).bytes(2, at("n1", 1)), found{}, false},
		"protobuf": {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 1)).bytes(6, []byte("protobuf")), found{}, false},
		"no port":  {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 0)), found{}, false},
		"rank":     {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 1)).varint(5, maxRanks), found{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := readSource(c.msg, "10.0.0.1")
			require.Equal(t, c.ok, ok)
			if ok {
				require.Equal(t, c.want, got)
			}
		})
	}
}
