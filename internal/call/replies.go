package call

import (
	"encoding/binary"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// replies are the messages of a stream's first attempt as they came. To read each message for the output that it adds
// costs a sixth of the stream's processor time (BenchmarkResume); to copy it costs little, and few streams break. The
// goroutine of RecvMsg uses them.
type replies struct {
	kind protoreflect.MessageType
	log  *[]byte // of logs; each message behind its length; nil = nothing was noted
	end  int     // of the messages that the application has; what is behind is of a message under way
}

// maxLog is when the messages are read after all, in bytes.
const maxLog = 64 << 10

// logs are those of no stream.
var logs = sync.Pool{New: func() any { return new([]byte) }}

// note copies a message that is about to be decoded.
func (r *replies) note(data mem.BufferSlice) {
	if r.log == nil {
		r.log = logs.Get().(*[]byte)
	}
	log := (*r.log)[:r.end]
	if len(data) == 1 { // as a rule
		b := data[0].ReadOnlyData()
		log = append(binary.AppendUvarint(log, uint64(len(b))), b...)
	} else {
		log = binary.AppendUvarint(log, uint64(data.Len()))
		for _, b := range data {
			log = append(log, b.ReadOnlyData()...)
		}
	}
	*r.log = log
}

// deliver notes that the application gets the last message. It returns false if the message was not noted.
func (r *replies) deliver(msg any) bool {
	if r.log == nil || len(*r.log) == r.end {
		return false
	}
	if r.kind == nil {
		m, typed := msg.(proto.Message)
		if !typed {
			return false
		}
		r.kind = m.ProtoReflect().Type()
	}
	r.end = len(*r.log)
	return true
}

// read calls each for all messages that were delivered, and forgets them.
func (r *replies) read(each func(proto.Message)) {
	if r.log == nil {
		return
	}
	for rest := (*r.log)[:r.end]; len(rest) > 0; {
		size, n := binary.Uvarint(rest)
		m := r.kind.New().Interface()
		if proto.Unmarshal(rest[n:n+int(size)], m) == nil { // it was decoded before
			each(m)
		}
		rest = rest[n+int(size):]
	}
	r.end = 0
}

// free gives the memory back.
func (r *replies) free() {
	if r.log != nil && cap(*r.log) <= 2*maxLog {
		*r.log = (*r.log)[:0]
		logs.Put(r.log)
	}
	*r = replies{}
}
