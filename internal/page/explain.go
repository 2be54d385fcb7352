package page

import (
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// A question is what the form asks, with the answer.
type question struct {
	Deployment, Model, Session, Prompt string
	Problem                            string // in place of an answer
	Answer                             *warmpathv1.ChooseReplicaResponse
	Why                                string
	Rows                               []candidate
}

// A candidate is a row of the answer.
type candidate struct {
	*warmpathv1.Candidate
	Left, Load, Text string // in tokens
	Part             string // its score as a part of the highest, in percent
}

// maxCandidates is the most that ChooseReplica lists.
const maxCandidates = 256

// explain answers the form with the page. It asks with PICK_MODE_QUERY, so the policy does not learn the route.
func (p *Page) explain(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, int64(p.options.MaxBody))
	if err := r.ParseForm(); err != nil {
		p.write(w, r, http.StatusBadRequest, &question{Problem: err.Error()})
		return
	}
	f := r.PostForm
	q := &question{
		Deployment: f.Get("deployment"), Model: f.Get("model"), Session: f.Get("session"),
		Prompt: strings.ReplaceAll(f.Get("prompt"), "\r\n", "\n"), // forms send line ends so
	}
	code := http.StatusOK
	if err := p.answer(r, q); err != nil {
		q.Problem, code = status.Convert(err).Message(), endpoint.RefusalOf(err).Code
	}
	p.write(w, r, code, q)
}

func (p *Page) answer(r *http.Request, q *question) error {
	call := &endpoint.Call{Headers: func(string) []string { return nil }}
	if strings.HasPrefix(strings.TrimSpace(q.Prompt), "{") {
		call.Body = []byte(q.Prompt)
	}
	ask, _, err := call.Question(nil)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if call.Body == nil && q.Prompt != "" {
		ask.Key.Prompt = &warmpathv1.RequestKey_Text{Text: q.Prompt}
	}
	if q.Session != "" {
		ask.Key.Session = q.Session
	}
	if q.Model != "" {
		ask.Key.Model = q.Model
	}
	ask.Deployment, ask.Mode, ask.MaxCandidates = q.Deployment, warmpathv1.PickMode_PICK_MODE_QUERY, maxCandidates
	ask.Pair = true
	a, err := p.host.ChooseReplica(call.Context(r.Context()), ask)
	if err != nil {
		return err
	}
	q.Answer, q.Why, q.Rows = a, why(a), candidates(a)
	return nil
}

// why is the decision in words.
func why(a *warmpathv1.ChooseReplicaResponse) string {
	d := a.GetDecision()
	text := fmt.Sprintf("%s of %s decides: %s.", d.GetPolicy(), a.GetDeployment(), d.GetReason())
	if d.GetPlace() >= 0 {
		text += fmt.Sprintf(" It is number %d in the order of the key.", d.GetPlace()+1)
	}
	if n := d.GetPromptTokens(); n > 0 {
		text += fmt.Sprintf(" The prompt has %s tokens.", count(n))
	}
	if p := a.GetPrefill(); p != nil {
		text += fmt.Sprintf(" %s prefills it: %s.", p.GetId(), a.GetPrefillDecision().GetReason())
	}
	if len(a.GetCandidates()) == 0 {
		return text + " The scores are for trusted principals."
	}
	return text + " The score is load and what is left to compute of the prompt, in tokens; " +
		"the policy may weigh more than that."
}

// candidates are the rows of an answer; the replica that prefills for another one is the first.
func candidates(a *warmpathv1.ChooseReplicaResponse) (all []candidate) {
	top, from := 0.0, a.GetCandidates()
	if d := a.GetPrefillDecision(); d != nil && len(from) > 0 {
		score := d.GetLoad() + float64(d.GetPromptTokens()) - float64(d.GetMatchedTokens())
		from = append([]*warmpathv1.Candidate{{Replica: a.GetPrefill(), Decision: d, Score: score}}, from...)
	}
	for _, c := range from {
		top = max(top, c.GetScore())
	}
	for _, c := range from {
		d := c.GetDecision()
		all = append(all, candidate{
			Candidate: c, Part: percentage(share(c.GetScore(), top)), Text: count(int(c.GetScore())),
			Left: count(int(d.GetPromptTokens()) - int(d.GetMatchedTokens())), Load: count(int(d.GetLoad())),
		})
	}
	return all
}
