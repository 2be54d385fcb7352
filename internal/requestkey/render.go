package requestkey

import (
	"unicode/utf8"
	"unsafe"
)

// A chat or a batch becomes one text by way of bytes that no UTF-8 text has:
//
//	chat    = [tools] turn*
//	tools   = FE 'T' json                   the tools offered, ahead of all turns
//	turn    = FF role field*
//	field   = FE letter value               t text, n name, m media (kind and hash of its
//	                                        address or data), c name of a called tool, a its
//	                                        arguments, i its id, r id answered, k reasoning, f refusal
//	batch   = prompt (FD prompt)*
//
// Text that is not UTF-8 has its bytes FB to FF escaped, so the frames stay
// unambiguous. Nothing is written behind a turn, so one more turn only appends.
const (
	frameTurn   = 0xFF
	frameField  = 0xFE
	frameBatch  = 0xFD
	frameEscape = 0xFB
)

func appendText(dst []byte, s string) []byte {
	if utf8.ValidString(s) {
		return append(dst, s...)
	}
	for i := range len(s) {
		if c := s[i]; c >= frameEscape {
			dst = append(dst, frameEscape, c-frameEscape)
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

func appendField(dst []byte, letter byte, s string) []byte {
	return appendText(append(dst, frameField, letter), s)
}

// appendTurn renders a turn that has a role and text only.
func appendTurn(dst []byte, role, content string) []byte {
	dst = appendText(append(dst, frameTurn), role)
	return appendField(dst, 't', content)
}

// renderBatch returns the prompts of a batch as one text; one prompt is itself.
func renderBatch(first string, more []string) string {
	if len(more) == 0 {
		return first
	}
	n := len(first)
	for _, s := range more {
		n += 1 + len(s)
	}
	dst := appendText(make([]byte, 0, n), first)
	for _, s := range more {
		dst = appendText(append(dst, frameBatch), s)
	}
	return alias(dst)
}

// alias returns b as a string that shares its memory.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf returns s as bytes that share its memory and must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
