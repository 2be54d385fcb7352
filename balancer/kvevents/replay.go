package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/go-zeromq/zmq4"
)

const (
	replayIdle  = 2 * time.Second
	replayTotal = 2 * time.Minute
)

var errStop = errors.New("kvevents: enough")

// replayer asks an engine for what it has published from a sequence number on.
type replayer struct {
	address string
	slots   chan struct{} // bounds the replays at once in the process
}

// from calls each for every message that the engine still has, from the number on, in order. It ends with the engine's
// end marker, or early and without an error if each returns errStop.
func (r *replayer) from(ctx context.Context, seq uint64, each func(seq uint64, payload []byte) error) error {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p, err := dialPeer(ctx, r.address, zmq4.Dealer)
	if err != nil {
		return fmt.Errorf("kvevents: replay: %w", err)
	}
	defer p.close()
	end := time.Now().Add(replayTotal)
	_ = p.raw.SetDeadline(time.Now().Add(replayIdle))
	if err := p.send(nil, binary.BigEndian.AppendUint64(nil, seq)); err != nil {
		return fmt.Errorf("kvevents: replay: %w", err)
	}
	for {
		idle := time.Now().Add(replayIdle)
		if idle.After(end) {
			idle = end
		}
		_ = p.raw.SetDeadline(idle)
		frames, err := p.receive()
		if err != nil {
			return fmt.Errorf("kvevents: replay: %w", err)
		}
		number, payload, last, ok := replayed(frames)
		if last {
			return nil
		}
		if !ok {
			continue
		}
		if err := each(number, payload); err != nil {
			if errors.Is(err, errStop) {
				return nil
			}
			return err
		}
	}
}

var endMarker = bytes.Repeat([]byte{0xff}, 8)

// replayed reads a reply. Engines send a delimiter or none, and the topic or none, before the number and the payload;
// the last reply has the number -1 and no payload.
func replayed(frames [][]byte) (seq uint64, payload []byte, last, ok bool) {
	if len(frames) < 2 {
		return 0, nil, false, false
	}
	number, payload := frames[len(frames)-2], frames[len(frames)-1]
	if len(payload) == 0 || bytes.Equal(number, endMarker) {
		return 0, nil, true, false
	}
	if len(number) != 8 {
		return 0, nil, false, false
	}
	return binary.BigEndian.Uint64(number), payload, false, true
}
