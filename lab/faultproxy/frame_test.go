package faultproxy

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// The frames read are those that were sent, whole, with each block of headers in one piece.
func FuzzReadFrame(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, http2.NewFramer(&b, nil).WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100}))
	f.Add(b.Bytes())
	f.Add([]byte{0, 0, 1, 0, 1, 0, 0, 0, 1, 'x'})
	f.Add([]byte{0, 0, 1, 1, 0, 0, 0, 0, 1, 'x', 0, 0, 1, 9, 4, 0, 0, 0, 1, 'y'})
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, err := readFrame(bytes.NewReader(data))
		require.True(t, bytes.HasPrefix(data, raw))
		if err != nil {
			return
		}
		for open := true; open; {
			h, err := http2.ReadFrameHeader(bytes.NewReader(raw))
			require.NoError(t, err)
			raw = raw[9+h.Length:]
			headers := h.Type == http2.FrameHeaders || h.Type == http2.FrameContinuation
			open = headers && !h.Flags.Has(http2.FlagHeadersEndHeaders)
		}
		require.Empty(t, raw)
	})
}
