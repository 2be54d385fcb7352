package proxy

import (
	"compress/zlib"
	"io"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // clients in C++ and Python compress with it
)

func init() { encoding.RegisterCompressor(&deflate{}) }

// deflate is the other compression of gRPC's C++ and Python clients, which grpc-go does not have: zlib's format.
type deflate struct{ writers, readers sync.Pool }

// Name implements [encoding.Compressor].
func (*deflate) Name() string { return "deflate" }

// Compress implements [encoding.Compressor].
func (d *deflate) Compress(w io.Writer) (io.WriteCloser, error) {
	z, ok := d.writers.Get().(*zlib.Writer)
	if !ok {
		z = zlib.NewWriter(io.Discard)
	}
	z.Reset(w)
	return &deflater{z, d}, nil
}

type deflater struct {
	*zlib.Writer
	pool *deflate
}

// Close implements [io.Closer].
func (z *deflater) Close() error {
	defer z.pool.writers.Put(z.Writer)
	return z.Writer.Close()
}

// Decompress implements [encoding.Compressor].
func (d *deflate) Decompress(r io.Reader) (io.Reader, error) {
	z, ok := d.readers.Get().(io.Reader)
	if !ok {
		var err error
		if z, err = zlib.NewReader(r); err != nil {
			return nil, err
		}
	} else if err := z.(zlib.Resetter).Reset(r, nil); err != nil {
		return nil, err
	}
	return &inflater{z, d}, nil
}

type inflater struct {
	io.Reader
	pool *deflate
}

// Read implements [io.Reader].
func (z *inflater) Read(p []byte) (int, error) {
	n, err := z.Reader.Read(p)
	if err == io.EOF && z.pool != nil {
		z.pool.readers.Put(z.Reader)
		z.pool = nil
	}
	return n, err
}
