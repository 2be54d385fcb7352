package faultproxy

import "time"

// A Fault is what is wrong with a server's connections. The zero value is nothing.
type Fault struct {
	// Refuse resets new connections as soon as they are made, as without a listener. Those that are there stay.
	Refuse bool
	// Blackhole lets nothing pass in either direction, without notice: connections are taken, bytes are held.
	// What was held passes once the fault has gone, as TCP's retransmissions would.
	Blackhole bool
	// Delay is how much later the client gets what the server sends.
	Delay time.Duration
	// BytesPerSecond is how fast either side reads what the other sends; 0 means at once. HTTP/2's and TCP's windows
	// fill up behind it.
	BytesPerSecond int
	// ResetAfter ends every stream with RST_STREAM in place of its DATA frame of this number, counted from 1 since the
	// stream began; 0 means never.
	ResetAfter int
	// MaxStreams is how many streams at once new connections are allowed; 0 means the server's own limit.
	MaxStreams uint32
}

// rule is a fault, and the notice of the next one.
type rule struct {
	Fault
	changed chan struct{} // closed by the next Set
}
