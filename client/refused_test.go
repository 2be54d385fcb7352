package client

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOversize(t *testing.T) {
	for _, s := range []string{
		"grpc: received message larger than max (5 vs. 4)",
		"grpc: received message larger than max length allowed on current machine (5 vs. 4)",
		"grpc: received message after decompression larger than max (5 vs. 4)",
		"trying to send message larger than max (5 vs. 4)",
		"grpc: message too large (5 bytes)",
		"Received message larger than max (5 vs. 4)",
		"Sent message larger than max (5 vs. 4)",
		"SERVER: Received message larger than max (5 vs. 4)",
		"received metadata size exceeds hard limit (18013 vs. 16384);  grpc-status:44B",
		"received trailing metadata size exceeds limit",
		"gRPC message exceeds maximum size 4194304: 8667657",
		"Received message exceeds the maximum configured message size.",
		"Error, decoded message length too large: found 8433026 bytes, the limit is: 4194304 bytes",
		"Cannot return body with more than 4GB of data but got 5 bytes",
	} {
		require.True(t, oversize(s), s)
	}
	for _, s := range []string{"", "busy", "too many requests", "the queue is full", "request queue exceeds 8 waiting"} {
		require.False(t, oversize(s), s)
	}
}
