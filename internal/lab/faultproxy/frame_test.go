package faultproxy

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// What is read is what was sent, and a bound on the streams is a SETTINGS frame that HTTP/2 accepts.
func FuzzReadFrame(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, http2.NewFramer(&b, nil).WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100}))
	f.Add(b.Bytes())
	f.Add([]byte{0, 0, 1, 0, 1, 0, 0, 0, 1, 'x'})
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, raw, err := readFrame(bytes.NewReader(data), nil)
		if err != nil {
			return
		}
		require.Equal(t, data[:len(raw)], raw)
		require.Equal(t, headerLength+int(h.Length), len(raw))
		if h.Type != http2.FrameSettings || h.StreamID != 0 || h.Length%6 != 0 || h.Length > 60 || h.Flags.Has(http2.FlagSettingsAck) {
			return
		}
		fr, err := http2.NewFramer(nil, bytes.NewReader(limitStreams(h, raw, 7))).ReadFrame()
		if err != nil {
			return // one of the server's own settings is out of bounds
		}
		v, ok := fr.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams)
		require.True(t, ok)
		require.EqualValues(t, 7, v)
	})
}
