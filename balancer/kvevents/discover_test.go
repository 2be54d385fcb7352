package kvevents

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/warmpath/warmpath/internal/eventsource"
	"github.com/warmpath/warmpath/internal/kvevents"
)

// pb is an encoded protobuf message.
type pb []byte

func (m pb) varint(num protowire.Number, v uint64) pb {
	return protowire.AppendVarint(protowire.AppendTag(m, num, protowire.VarintType), v)
}

func (m pb) bytes(num protowire.Number, b []byte) pb {
	return protowire.AppendBytes(protowire.AppendTag(m, num, protowire.BytesType), b)
}

func TestReadSource(t *testing.T) {
	at := func(host string, port uint64) pb {
		return pb{}.bytes(1, []byte(host)).varint(2, port).bytes(3, []byte("tcp"))
	}
	for name, c := range map[string]struct {
		msg  pb
		want socket
		ok   bool
	}{
		"message":  {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 5557)).bytes(3, []byte("kv")).bytes(4, []byte("tcp://n1:5558")).varint(5, 2), socket{eventsource.Source{Address: "n1:5557", Replay: "n1:5558", Topic: "kv"}, 2}, true},
		"text":     {pb{}.bytes(1, []byte("zmq")).bytes(2, []byte("tcp://n1:5557")).bytes(6, []byte("msgpack")), socket{eventsource.Source{Address: "n1:5557"}, 0}, true},
		"wildcard": {pb{}.bytes(1, []byte("zmq")).bytes(2, at("*", 5557)).bytes(4, []byte("tcp://0.0.0.0:5558")), socket{eventsource.Source{Address: "10.0.0.1:5557", Replay: "10.0.0.1:5558"}, 0}, true},
		"grpc":     {pb{}.bytes(1, []byte("grpc")).bytes(2, at("n1", 1)), socket{}, false},
		"protobuf": {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 1)).bytes(6, []byte("protobuf")), socket{}, false},
		"no port":  {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 0)), socket{}, false},
		"rank":     {pb{}.bytes(1, []byte("zmq")).bytes(2, at("n1", 1)).varint(5, kvevents.MaxRanks), socket{}, false},
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
