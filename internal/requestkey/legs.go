package requestkey

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/strict"
)

// Legs make the two requests of one that is split: the application's own, each with a patch.
type Legs struct {
	params, sequences, answer place
	prefill, decode           []assignment
	sequential                bool // decode has the answer of the prefill leg
	drain                     bool
	engine                    *Legs // where the prefill replica has an engine id; nil = the same
}

// An assignment is a field that a leg's request gets.
type assignment struct {
	at      place
	value   string
	integer bool
}

// integers are the values that are integers beside digits.
var integers = []string{"true", "$room", "$room32", "$port"}

// A Transfer is what two legs have in common.
type Transfer struct {
	Room    int64  // of 63 bits, not 0
	Address string // of the bootstrap server, host:port
	Engine  string
	Answer  []byte // of the prefill leg
}

// compile compiles all but the places that a request is read from. The error names the field.
func (l *Legs) compile(kv *dialect.KV) error {
	l.sequential = slices.Contains(slices.Collect(maps.Values(kv.Decode)), "$answer")
	if l.sequential != (kv.Answer != "") {
		return errors.New("answer: it goes with $answer in decode")
	}
	var errPrefill, errDecode error
	l.prefill, errPrefill = assignments(kv.Prefill, false)
	l.decode, errDecode = assignments(kv.Decode, l.sequential)
	return cmp.Or(strict.In("prefill: ", errPrefill), strict.In("decode: ", errDecode))
}

// reference is how a value refers to something, and references are what it may refer to.
var (
	reference  = regexp.MustCompile(`\$\w+`)
	references = []string{"$room", "$room32", "$host", "$port", "$address", "$engine"}
)

// assignments compiles the fields that a leg gets, a message before what is in it. handed: one may be the answer.
func assignments(fields map[dialect.Path]string, handed bool) (all []assignment, err error) {
	if len(fields) == 0 {
		return nil, errors.New("it is not set")
	}
	for _, p := range slices.Sorted(maps.Keys(fields)) {
		a := assignment{value: fields[p]}
		for _, name := range reference.FindAllString(a.value, -1) {
			if !slices.Contains(references, name) && !(handed && a.value == "$answer") {
				return nil, fmt.Errorf("%q: %s is not one of %v, nor alone the answer in decode", p, name, references)
			}
		}
		if a.integer = slices.Contains(integers, a.value); !a.integer {
			_, number := strconv.ParseInt(a.value, 10, 64)
			a.integer = number == nil
		}
		if a.at.alts, err = parsePath(p); err == nil {
			err = cmp.Or(a.at.checkTarget(p), strict.Want(p != "", "%q: it is empty", p))
		}
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// Legs returns the legs of the method's requests, nil where they are not split.
func (m *Method) Legs() *Legs { return m.legs }

// Splits reports whether a request can be split: it is one prompt with one output, and the application has not set
// transfer parameters itself.
func (m *Method) Splits(msg any) bool {
	if m.legs == nil || msg == nil {
		return false
	}
	defer harmless()
	s := open(msg, m.named, false)
	set := s.typed == nil && s.raw == nil // it cannot be read
	for _, alt := range m.legs.params.alts {
		set = s.walk(s.message, alt, m.legs.params.want, func(value) {}) > 0 || set
	}
	for _, alt := range slices.Concat(m.prompt.alts, m.tokens.alts) {
		set = set || alt.hasList() && s.walk(s.message, alt, scalar|kindIDs|kindMessage, func(value) {}) > 0
	}
	return !set && m.legs.sequences.count(&s) <= 1
}

// For returns the legs for a prefill replica.
func (l *Legs) For(engine string) *Legs {
	if l.engine != nil && engine != "" {
		return l.engine
	}
	return l
}

// Sequential reports whether the decode leg begins with the answer of the prefill leg. Else both begin at once.
func (l *Legs) Sequential() bool { return l.sequential }

// Drains reports whether a cancelled decode leg goes on until its first response message.
func (l *Legs) Drains() bool { return l.drain }

// PairOnly reports whether replicas that have a role refuse requests that are not split: those whose legs begin at once.
func (l *Legs) PairOnly() bool { return !l.Sequential() }

// Answer reads what a response of a leg hands over, which may alias the message; nil where it is not there.
func (l *Legs) Answer(response any) (answer []byte) {
	defer harmless()
	s := open(response, false, false)
	l.answer.each(&s, func(v value) { answer = v.message().encoded() })
	return answer
}

// PatchPrefill appends the fields of the prefill leg to a patch.
func (l *Legs) PatchPrefill(patch []byte, t *Transfer) []byte { return t.write(patch, l.prefill) }

// PatchDecode appends the fields of the decode leg to a patch.
func (l *Legs) PatchDecode(patch []byte, t *Transfer) []byte { return t.write(patch, l.decode) }

// write appends fields to a patch.
func (t *Transfer) write(patch []byte, fields []assignment) []byte {
	for i := range fields {
		at := &fields[i].at
		switch value := fields[i].value; {
		case value == "$answer":
			patch = at.bytes(patch, t.Answer)
		case value == "true":
			patch = at.number(patch, 1)
		case fields[i].integer:
			n, _ := strconv.ParseInt(t.expand(value), 10, 64)
			patch = at.number(patch, n)
		default:
			patch = at.bytes(patch, []byte(t.expand(value)))
		}
	}
	return patch
}

// expand replaces what a value refers to. Names do not break out of the JSON that they may stand in.
func (t *Transfer) expand(value string) string {
	if !strings.Contains(value, "$") {
		return value
	}
	host, port, _ := net.SplitHostPort(t.Address)
	return strings.NewReplacer(
		"$room32", strconv.FormatInt(max(t.Room&(1<<31-1), 1), 10), "$room", strconv.FormatInt(t.Room, 10),
		"$host", quoted(host), "$port", port, "$address", quoted(t.Address), "$engine", quoted(t.Engine),
	).Replace(value)
}

// quoted is a text as it stands in a JSON string.
func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b[1 : len(b)-1])
}
