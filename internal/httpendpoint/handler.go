package httpendpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/requestkey"
	routerstate "github.com/warmpath/warmpath/internal/router/state"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The paths of the endpoint.
const (
	RoutePath  = "/internal/route"
	HealthPath = "/healthz"
)

// Headers of a request, beside the one with the session and X-Request-Id.
const (
	// HeaderDeployment names the deployment; absent = by the model, or the only one.
	HeaderDeployment = "X-Warmpath-Deployment"
	// HeaderExclude lists the ids of replicas that must not be picked, with commas between them.
	HeaderExclude = "X-Warmpath-Exclude"
	// HeaderTruncated marks a body that the client has cut: "have/full", in bytes.
	HeaderTruncated = "X-Body-Truncated"
)

// A Chooser picks replicas: the look-aside server. Its errors are gRPC statuses.
type Chooser interface {
	ChooseReplica(context.Context, *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error)
}

// handler answers requests for a replica.
type handler struct {
	chooser  Chooser
	sessions *requestkey.SessionKeys
	maxBody  int
}

// NewHandler returns the endpoint's handler. serving reports whether the server takes requests.
func NewHandler(c Config, chooser Chooser, serving func() bool) (http.Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	sessions, err := requestkey.NewSessionKeys(c.SessionHeader)
	if err != nil {
		return nil, err
	}
	h := &handler{chooser: chooser, sessions: sessions, maxBody: c.MaxBodyBytes}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+RoutePath, h.route)
	mux.HandleFunc(RoutePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		wrongMethod.write(w, "ask with POST")
	})
	mux.HandleFunc("GET "+HealthPath, func(w http.ResponseWriter, _ *http.Request) {
		if !serving() {
			shuttingDown.write(w, "the server shuts down")
			return
		}
		write(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		unknownPath.write(w, "there are POST "+RoutePath+" and GET "+HealthPath)
	})
	return mux, nil
}

func (h *handler) route(w http.ResponseWriter, r *http.Request) {
	q, body, state, err := h.question(r)
	w.Header().Set(HeaderBody, string(state))
	if err != nil {
		badRequest.write(w, err.Error())
		return
	}
	ctx := context.WithValue(r.Context(), originKey{}, &origin{r.Header, body})
	a, err := h.chooser.ChooseReplica(ctx, q)
	if err != nil {
		refuse(w, err)
		return
	}
	to, err := destinationOf(a)
	if err != nil {
		noAddress.write(w, err.Error())
		return
	}
	to.Truncated = state == BodyTruncated
	w.Header().Set(HeaderReason, a.GetDecision().GetReason())
	write(w, http.StatusOK, to)
}

// BodyState is the value of [HeaderBody]: how much of the body of a request was used.
type BodyState string

// The states.
const (
	bodyNone       BodyState = "none"       // there is none
	bodyWhole      BodyState = "whole"      // all of it
	BodyTruncated  BodyState = "truncated"  // its beginning: the rest did not arrive, or is beyond the bound
	bodyUnreadable BodyState = "unreadable" // nothing: it is no JSON object
)

// question is the ChooseReplica request of an HTTP request, with its body up to max_body_bytes, as far as it arrives in
// time.
func (h *handler) question(r *http.Request) (
	q *warmpathv1.ChooseReplicaRequest, body []byte, state BodyState, err error,
) {
	headers := metadata.NewOutgoingContext(r.Context(), metadata.MD(r.Header))
	k := policy.Request{ID: routerstate.SessionKey(r.Header.Get("X-Request-Id")), Session: h.sessions.Outgoing(headers)}
	body, late := io.ReadAll(io.LimitReader(r.Body, int64(h.maxBody)+1))
	cut := late != nil || len(body) > h.maxBody || r.Header.Get(HeaderTruncated) != ""
	body = body[:min(len(body), h.maxBody)]
	start := bytes.TrimLeft(body, " \t\r\n")
	switch {
	case len(body) == 0 && late == nil:
		state = bodyNone
	case len(start) > 0 && start[0] != '{':
		state = bodyUnreadable
	default:
		var whole bool
		if whole, err = requestkey.ReadBody(&k, body); whole && !cut {
			state = bodyWhole
		} else {
			state = BodyTruncated
		}
	}
	key := &warmpathv1.RequestKey{
		RequestId: routerstate.SessionKey(k.ID), Session: k.Session, Model: k.Model, Adapter: k.Adapter, CacheSalt: k.CacheSalt,
	}
	switch p := &k.Prompt; {
	case len(p.Tokens) > 0:
		key.Prompt = &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: p.Tokens}}
	case p.Text != "":
		key.Prompt = &warmpathv1.RequestKey_Text{Text: p.Text}
	}
	return &warmpathv1.ChooseReplicaRequest{
		Deployment: r.Header.Get(HeaderDeployment), Key: key, Excluded: excluded(r.Header),
		Mode: warmpathv1.PickMode_PICK_MODE_COUNT,
	}, body, state, err
}

// origin is the HTTP request that a ChooseReplica request was made of.
type origin struct {
	header http.Header
	body   []byte
}

type originKey struct{}

// Origin returns the HTTP request that a pick was asked with, nil where it was asked otherwise.
func Origin(ctx context.Context) routerstate.Origin {
	if o, ok := ctx.Value(originKey{}).(*origin); ok {
		return o
	}
	return nil
}

// Message implements state.Origin: the body as far as it arrived.
func (o *origin) Message() any {
	if len(o.body) == 0 {
		return nil
	}
	return o.body
}

// Header implements state.Origin.
func (o *origin) Header(key string) []string { return o.header.Values(key) }

func excluded(h http.Header) []string {
	return strings.FieldsFunc(strings.Join(h.Values(HeaderExclude), ","), func(c rune) bool { return c == ',' || c == ' ' })
}

// destinationOf splits the replica's address.
func destinationOf(a *warmpathv1.ChooseReplicaResponse) (*Destination, error) {
	r := a.GetReplica()
	host, digits, err := net.SplitHostPort(r.GetAddress())
	port, errPort := strconv.ParseUint(digits, 10, 16)
	if errors.Join(err, errPort) != nil || host == "" {
		return nil, fmt.Errorf("the address of replica %q is not host:port", r.GetId())
	}
	to := &Destination{ReplicaID: r.GetId(), Host: host, Port: int(port), Deployment: a.GetDeployment()}
	if r.Rank != nil {
		to.RequestHeaders = map[string]string{warmpathv1.MetadataDataParallelRank: fmt.Sprint(r.GetRank())}
	}
	return to, nil
}
