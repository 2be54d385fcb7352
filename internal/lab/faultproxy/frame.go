package faultproxy

import (
	"encoding/binary"
	"io"

	"golang.org/x/net/http2"
)

const headerLength = 9

// readFrame reads a frame into the buffer, or into a larger one.
func readFrame(r io.Reader, into []byte) (http2.FrameHeader, []byte, error) {
	if cap(into) < headerLength {
		into = make([]byte, headerLength, 64)
	}
	into = into[:headerLength]
	if _, err := io.ReadFull(r, into); err != nil {
		return http2.FrameHeader{}, into, err
	}
	h := http2.FrameHeader{
		Length: uint32(into[0])<<16 | uint32(into[1])<<8 | uint32(into[2]), Type: http2.FrameType(into[3]),
		Flags: http2.Flags(into[4]), StreamID: binary.BigEndian.Uint32(into[5:]) & (1<<31 - 1),
	}
	if need := headerLength + int(h.Length); cap(into) < need {
		into = append(make([]byte, 0, need), into...)
	}
	into = into[:headerLength+int(h.Length)]
	_, err := io.ReadFull(r, into[headerLength:])
	return h, into, err
}

// limitStreams is a SETTINGS frame with this bound on the streams at once; an acknowledgement stays as it is.
func limitStreams(h http2.FrameHeader, raw []byte, most uint32) []byte {
	const size = 6
	if h.Flags.Has(http2.FlagSettingsAck) {
		return raw
	}
	out := append(make([]byte, 0, len(raw)+size), raw[:headerLength]...)
	for rest := raw[headerLength:]; len(rest) >= size; rest = rest[size:] {
		if http2.SettingID(binary.BigEndian.Uint16(rest)) != http2.SettingMaxConcurrentStreams {
			out = append(out, rest[:size]...)
		}
	}
	out = binary.BigEndian.AppendUint16(out, uint16(http2.SettingMaxConcurrentStreams))
	out = binary.BigEndian.AppendUint32(out, most)
	n := len(out) - headerLength
	out[0], out[1], out[2] = byte(n>>16), byte(n>>8), byte(n)
	return out
}
