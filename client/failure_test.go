package client

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/channel"
)

func TestClassify(t *testing.T) {
	replica := &routing.Replica{}
	sent, picked, fullOnes := channel.Attempt{Replica: replica, Sent: true}, channel.Attempt{Replica: replica}, channel.Attempt{Full: true}
	for _, tt := range []struct {
		code codes.Code
		text string
		last channel.Attempt
		want failure
	}{
		{codes.Unavailable, "no replica", channel.Attempt{}, unsent},
		{codes.Unavailable, "connection refused", picked, unsent},
		{codes.Unavailable, textRefused, sent, unsent},
		{codes.Unavailable, textDrained, sent, unsent},
		{codes.Unavailable, "loading", sent, broken},
		{codes.Internal, textReset + "INTERNAL_ERROR", sent, broken},
		{codes.Internal, textReset + "PROTOCOL_ERROR", sent, broken},
		{codes.Canceled, textReset + "CANCEL", sent, broken},
		{codes.ResourceExhausted, textReset + "ENHANCE_YOUR_CALM", sent, broken},
		{codes.Unknown, textReset + "13", sent, broken},
		{codes.Internal, textReset + "INTERNAL_ERROR", picked, final},
		{codes.Internal, "a bug", sent, final},
		{codes.Canceled, "by the replica", sent, final},
		{codes.Aborted, "x", sent, final},
		{codes.DeadlineExceeded, "x", sent, final},
		{codes.ResourceExhausted, "busy", sent, rejected},
		{codes.ResourceExhausted, "received message larger than max (2 vs. 1)", sent, final},
		{codes.ResourceExhausted, "every replica is full", fullOnes, full},
		{codes.ResourceExhausted, "the queue is full", channel.Attempt{}, final},
	} {
		require.Equal(t, tt.want, classify(status.Error(tt.code, tt.text), tt.last), "%v %q %+v", tt.code, tt.text, tt.last)
	}
}

func TestLost(t *testing.T) {
	for text, want := range map[string]bool{
		"error reading from server: EOF":                            true,
		`connection error: desc = "error reading from server: EOF"`: true,
		`connection error: desc = "error reading from server: read tcp 1.2.3.4:5->6.7.8.9:1: read: connection reset by peer"`:        true,
		`connection error: desc = "error reading from server: read tcp 1.2.3.4:5->6.7.8.9:1: read: connection timed out"`:            false,
		`connection error: desc = "keepalive ping failed to receive ACK within timeout"`:                                             false,
		`closing transport due to: connection error: desc = "error reading from server: EOF", received prior goaway: code: NO_ERROR`: false,
		"the replica says so": false,
	} {
		require.Equal(t, want, lost(status.Error(codes.Unavailable, text)), text)
	}
}
