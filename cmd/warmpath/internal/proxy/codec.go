package proxy

import (
	"compress/zlib"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients in C++ and Python compress with it
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

func init() { encoding.RegisterCompressor(deflate{}) }

// Codec passes messages through, which are of the type *mem.BufferSlice.
type Codec struct{}

// Marshal implements [encoding.CodecV2]. The message keeps its own reference, for another attempt.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m := v.(*mem.BufferSlice)
	m.Ref()
	return *m, nil
}

// Unmarshal implements [encoding.CodecV2].
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

// Name implements [encoding.CodecV2].
func (Codec) Name() string { return encodingproto.Name }

// raw is the option of every call to a replica.
var raw = grpc.ForceCodecV2(Codec{})

// deflate is the other compression of gRPC's C++ and Python clients, which grpc-go does not have: zlib's format. Few
// clients use it, so nothing is kept from one message to the next.
type deflate struct{}

// Name implements [encoding.Compressor].
func (deflate) Name() string { return "deflate" }

// Compress implements [encoding.Compressor].
func (deflate) Compress(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil }

// Decompress implements [encoding.Compressor].
func (deflate) Decompress(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }
