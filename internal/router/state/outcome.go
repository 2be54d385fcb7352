package state

// An Answer is how the host learns that a replica has answered. Only where it does are calls watched that wait.
type Answer uint8

// The ways.
const (
	AnswerUnseen  Answer = iota // only the end of a call is seen
	AnswerMessage               // the first message of several is seen
	AnswerWhole                 // the one message that there is is seen
)

// A Fault is what an outcome without a first message shows against the replica.
type Fault uint8

// The faults.
const (
	NoFault  Fault = iota // nothing: there was a message, or a status that speaks of the request
	Failed                // the replica failed, or the connection to it
	TimedOut              // the call's deadline passed first
	GivenUp               // the caller cancelled
	Late                  // the attempt was given up because its first message was late, and made elsewhere
	Doubtful              // the request is at fault, or the replica: the latter if the others answer such calls
)
