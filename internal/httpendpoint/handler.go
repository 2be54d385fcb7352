package httpendpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The paths of the door.
const (
	RoutePath  = "/internal/route"
	HealthPath = "/healthz"
)

// Headers of a question, beside the one with the session and X-Request-Id.
const (
	// HeaderDeployment names the deployment; absent = by the model, or the only one.
	HeaderDeployment = "X-Warmpath-Deployment"
	// HeaderExclude lists the ids of replicas that must not be picked, with commas between them.
	HeaderExclude = "X-Warmpath-Exclude"
	// HeaderTruncated says that the caller has cut the body: "have/full", in bytes.
	HeaderTruncated = "X-Body-Truncated"
)

// A Chooser picks replicas: the look-aside server. Its errors are gRPC statuses.
type Chooser interface {
	ChooseReplica(context.Context, *warmpathv1.ChooseReplicaRequest) (*warmpathv1.ChooseReplicaResponse, error)
}

// handler answers questions.
type handler struct {
	chooser  Chooser
	sessions *dialect.SessionKeys
	maxBody  int
}

// NewHandler returns the door's handler, to be wrapped at will. serving says whether the server takes requests. The config
// must be valid.
func NewHandler(c Config, chooser Chooser, serving func() bool) (http.Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	sessions, err := dialect.NewSessionKeys(c.SessionHeader)
	if err != nil {
		return nil, err
	}
	h := &handler{chooser: chooser, sessions: sessions, maxBody: c.MaxBodyBytes}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+RoutePath, h.route)
	mux.HandleFunc(RoutePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		Refuse(w, http.StatusMethodNotAllowed, ReasonMethod, "ask with POST")
	})
	mux.HandleFunc("GET "+HealthPath, func(w http.ResponseWriter, _ *http.Request) {
		if !serving() {
			Refuse(w, http.StatusServiceUnavailable, ReasonShuttingDown, "the server shuts down")
			return
		}
		write(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		Refuse(w, http.StatusNotFound, ReasonPath, "there are POST "+RoutePath+" and GET "+HealthPath)
	})
	return mux, nil
}

func (h *handler) route(w http.ResponseWriter, r *http.Request) {
	b := h.read(r)
	q, err := h.question(r, &b)
	w.Header().Set(HeaderBody, string(b.state))
	if err != nil {
		Refuse(w, http.StatusBadRequest, ReasonRequest, err.Error())
		return
	}
	a, err := h.chooser.ChooseReplica(context.WithValue(r.Context(), originKey{}, &origin{r.Header, b.raw}), q)
	if err != nil {
		refuseStatus(w, err)
		return
	}
	to, err := destinationOf(a)
	if err != nil {
		Refuse(w, http.StatusServiceUnavailable, ReasonAddress, err.Error())
		return
	}
	to.Truncated = b.state == BodyTruncated
	w.Header().Set(HeaderReason, a.GetDecision().GetReason())
	write(w, http.StatusOK, to)
}

// question is what the request asks. It sets what became of the body.
func (h *handler) question(r *http.Request, b *body) (*warmpathv1.ChooseReplicaRequest, error) {
	q := policy.Request{ID: dialect.SessionKey(r.Header.Get("X-Request-Id")), Session: h.sessions.In(metadata.MD(r.Header))}
	if err := b.decode(&q); err != nil {
		return nil, err
	}
	k := &warmpathv1.RequestKey{
		RequestId: dialect.SessionKey(q.ID), Session: q.Session, Model: q.Model, Adapter: q.Adapter, CacheSalt: q.CacheSalt,
		ExpectedOutputTokens: uint32(q.ExpectedOutput),
	}
	switch p := &q.Prompt; {
	case len(p.Tokens) > 0:
		k.Prompt = &warmpathv1.RequestKey_TokenIds{TokenIds: &warmpathv1.TokenIds{Ids: p.Tokens}}
	case p.Text != "":
		k.Prompt = &warmpathv1.RequestKey_Text{Text: p.Text}
	}
	return &warmpathv1.ChooseReplicaRequest{
		Deployment: r.Header.Get(HeaderDeployment), Key: k, Mode: warmpathv1.PickMode_PICK_MODE_COUNT, Excluded: excluded(r.Header),
	}, nil
}

// origin is the HTTP request of a question.
type origin struct {
	header http.Header
	body   []byte
}

type originKey struct{}

// Origin returns the HTTP request that a question came with, nil where it came otherwise.
func Origin(ctx context.Context) policy.Origin {
	if o, ok := ctx.Value(originKey{}).(*origin); ok {
		return o
	}
	return nil
}

// Message implements policy.Origin: the body, or what arrived of it.
func (o *origin) Message() any {
	if len(o.body) == 0 {
		return nil
	}
	return o.body
}

// Header implements policy.Origin.
func (o *origin) Header(key string) []string { return o.header.Values(key) }

func excluded(h http.Header) (ids []string) {
	for _, line := range h.Values(HeaderExclude) {
		for id := range strings.SplitSeq(line, ",") {
			if id = strings.TrimSpace(id); id != "" {
				ids = append(ids, id)
			}
		}
	}
	return ids
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
		to.RequestHeaders = map[string]string{warmpathv1.MetadataDataParallelRank: strconv.FormatUint(uint64(r.GetRank()), 10)}
	}
	return to, nil
}

// refuseStatus answers with what a gRPC status means in HTTP.
func refuseStatus(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	switch s.Code() {
	case codes.InvalidArgument:
		Refuse(w, http.StatusBadRequest, ReasonRequest, s.Message())
	case codes.NotFound:
		Refuse(w, http.StatusNotFound, ReasonUnknown, s.Message())
	case codes.Unavailable:
		Refuse(w, http.StatusServiceUnavailable, ReasonNoReplica, s.Message())
	case codes.ResourceExhausted:
		w.Header().Set("Retry-After", "1")
		Refuse(w, http.StatusServiceUnavailable, ReasonFull, s.Message())
	case codes.Unauthenticated:
		Refuse(w, http.StatusUnauthorized, ReasonUnauthenticated, s.Message())
	case codes.PermissionDenied:
		Refuse(w, http.StatusForbidden, ReasonForbidden, s.Message())
	case codes.Canceled, codes.DeadlineExceeded:
		Refuse(w, http.StatusServiceUnavailable, ReasonCanceled, s.Message())
	default:
		Refuse(w, http.StatusInternalServerError, ReasonInternal, s.Message())
	}
}
