package state

// An Answer is how the host learns that a replica has answered. Only where it does are calls watched that wait.
type Answer uint8

// The ways.
const (
	AnswerUnseen  Answer = iota // only the end of a call is seen
	AnswerMessage               // the first message of several is seen
	AnswerWhole                 // the one message that there is is seen
)
