// Package httpendpoint is the look-aside server's HTTP endpoint, for HAProxy with Lua, nginx and scripts.
//
// # Rule
//
// POST /internal/route picks a replica for the OpenAI request that is in the body, if there is one, and in the
// headers. The answer is Ray Serve's: {"replica_id": …, "host": …, "port": …}. The pick adds to the load for the
// next ten seconds, since the end of the request is not reported, or until the caller's own counts show that it ended. GET /healthz shows whether the server takes
// requests.
//
// # Guarantees
//
// Of a body that is too long, too slow or cut, the part that arrived is used: the prefix decides where a prompt goes,
// and the answer shows that the body was not whole. Every refusal has a reason in a header, for programs. Bodies,
// headers, connections and times are bounded by the [Config]. Nothing of a body is kept, logged or sent back.
//
// # Source
//
// Ray Serve LLM's ingress router as its clients see it, with better answers where a body is cut.
package httpendpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/endpoint"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/strict"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// The paths of the endpoint.
const (
	RoutePath  = "/internal/route"
	HealthPath = "/healthz"
)

// Headers of a request, beside X-Request-Id.
const (
	// HeaderSession has the session, in any case, with - and _ alike, if no other of the deployment's session_keys has
	// one. The headers of agents are read behind it.
	HeaderSession = endpoint.HeaderSession
	// HeaderDeployment names the deployment; absent = by the model, or the only one.
	HeaderDeployment = "X-Warmpath-Deployment"
	// HeaderExclude lists the ids of replicas that must not be picked, with commas between them.
	HeaderExclude = "X-Warmpath-Exclude"
	// HeaderPair, with any value, is for a request that can be sent in two legs: the answer may have a "prefill".
	HeaderPair = "X-Warmpath-Pair"
	// HeaderOngoing has the caller's requests by replica, as [endpoint.ParseOngoing] reads them: picks whose requests have
	// ended are no load.
	HeaderOngoing = "X-Warmpath-Ongoing"
	// HeaderTruncated marks a body that the client has cut: "have/full", in bytes.
	HeaderTruncated = "X-Body-Truncated"
)

// handler answers requests for a replica.
type handler struct {
	host    Host
	holders *endpoint.Holders
	maxBody int
}

// A Host is the look-aside server.
type Host interface {
	endpoint.Chooser
	endpoint.Reader
}

// NewHandler returns the handler of a valid config. serving reports whether the server takes requests.
func NewHandler(c Config, host Host, serving func() bool) http.Handler {
	c = c.WithDefaults()
	h := &handler{host: host, holders: endpoint.NewHolders(), maxBody: c.MaxBodyBytes}
	mux := http.NewServeMux()
	sameOrigin := http.NewCrossOriginProtection() // a page of another site, in a browser near the server, may not ask
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		crossOrigin.write(w, "another site's page has sent the request")
	}))
	mux.Handle("POST "+RoutePath, sameOrigin.Handler(http.HandlerFunc(h.route)))
	mux.HandleFunc(RoutePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		wrongMethod.write(w, "ask with POST")
	})
	mux.HandleFunc("GET "+HealthPath, func(w http.ResponseWriter, _ *http.Request) {
		if !serving() {
			shuttingDown.write(w, "the server shuts down")
			return
		}
		write(w, http.StatusOK, endpoint.JSON(map[string]string{"status": "ok"}))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		unknownPath.write(w, "there are POST "+RoutePath+" and GET "+HealthPath)
	})
	return mux
}

func (h *handler) route(w http.ResponseWriter, r *http.Request) {
	call, ctx := h.read(r)
	deployment := r.Header.Get(HeaderDeployment)
	q, state, err := call.Question(func(model string) *requestkey.SessionKeys {
		return h.host.Reading(ctx, deployment, model).Route
	})
	w.Header().Set(HeaderBody, string(state))
	if err != nil {
		badRequest.write(w, err.Error())
		return
	}
	if text := r.Header.Get(HeaderOngoing); text != "" {
		if call.Ongoing, err = endpoint.ParseOngoing(text); err != nil {
			badRequest.write(w, HeaderOngoing+": "+err.Error())
			return
		}
	}
	q.Deployment, q.Excluded = deployment, excluded(r.Header)
	q.Pair = r.Header.Get(HeaderPair) != ""
	q.Mode = warmpathv1.PickMode_PICK_MODE_COUNT
	a, err := h.holders.Choose(call, q, func() (*warmpathv1.ChooseReplicaResponse, error) {
		return h.host.ChooseReplica(call.Context(ctx), q)
	})
	if err != nil {
		refuse(w, err)
		return
	}
	to, err := destinationOf(a)
	if err != nil {
		noAddress.write(w, err.Error())
		return
	}
	to.Truncated = state == endpoint.BodyTruncated
	w.Header().Set(HeaderReason, a.GetDecision().GetReason())
	write(w, http.StatusOK, endpoint.JSON(to))
}

// read reads a request with its body up to max_body_bytes, as far as it arrives in time. ctx ends when the caller has
// gone. After a body that is late it does not end: net/http cancels that of the request, which is answered all the same.
func (h *handler) read(r *http.Request) (_ *endpoint.Call, ctx context.Context) {
	ctx = r.Context()
	body, late := io.ReadAll(io.LimitReader(r.Body, int64(h.maxBody)+1))
	if late != nil {
		ctx = context.WithoutCancel(ctx)
	}
	marked := len(body) > 0 && r.Header.Get(HeaderTruncated) != ""
	return &endpoint.Call{
		Headers: valuesOf(r.Header), Body: body[:min(len(body), h.maxBody)],
		Cut: late != nil || len(body) > h.maxBody || marked,
	}, ctx
}

// valuesOf finds headers in any case, also in one that net/http does not make canonical.
func valuesOf(h http.Header) func(string) []string {
	return func(name string) []string {
		for key, values := range h {
			if strings.EqualFold(key, name) {
				return values
			}
		}
		return nil
	}
}

func excluded(h http.Header) []string {
	return strings.FieldsFunc(strings.Join(h.Values(HeaderExclude), ","), func(c rune) bool { return c == ',' || c == ' ' })
}

// destinationOf is where to send a request, and the leg that prefills it, if it is split.
func destinationOf(a *warmpathv1.ChooseReplicaResponse) (*Destination, error) {
	to, err := addressOf(a.GetReplica())
	if err == nil && a.GetPrefill() != nil {
		to.Prefill, err = addressOf(a.GetPrefill())
	}
	if err != nil {
		return nil, err
	}
	to.Deployment = a.GetDeployment()
	return to, nil
}

// addressOf splits a replica's address.
func addressOf(r *warmpathv1.ChosenReplica) (*Destination, error) {
	host, digits, err := net.SplitHostPort(r.GetAddress())
	port, errPort := strconv.ParseUint(digits, 10, 16)
	if errors.Join(err, errPort) != nil || host == "" {
		return nil, fmt.Errorf("the address of replica %q is not host:port", r.GetId())
	}
	to := &Destination{
		ReplicaID: r.GetId(), Host: host, Port: int(port), KVBootstrap: r.GetKvBootstrap(), KVEngineID: r.GetKvEngineId(),
	}
	if r.Rank != nil {
		to.RequestHeaders = map[string]string{warmpathv1.MetadataDataParallelRank: fmt.Sprint(r.GetRank())}
	}
	return to, nil
}

// Headers of an answer.
const (
	// HeaderReason is the decision's reason, or of a refusal its reason.
	HeaderReason = endpoint.HeaderReason
	// HeaderRetryAfter of a refusal is the seconds until there may be room.
	HeaderRetryAfter = "Retry-After"
	// HeaderBody is the [endpoint.BodyState].
	HeaderBody = "X-Warmpath-Body"
)

// A refusal is an error as an answer.
type refusal endpoint.Refusal

var (
	badRequest   = refusal{http.StatusBadRequest, "invalid_request"}
	unknownPath  = refusal{http.StatusNotFound, "unknown_path"}
	crossOrigin  = refusal{http.StatusForbidden, "cross_origin"}
	wrongMethod  = refusal{http.StatusMethodNotAllowed, "method_not_allowed"}
	noAddress    = refusal{http.StatusServiceUnavailable, "no_address"} // the replica has no host and port
	shuttingDown = refusal{http.StatusServiceUnavailable, "shutting_down"}
	tooMany      = refusal{http.StatusTooManyRequests, "too_many_requests"} // more than the principal may
)

// Deny answers a request that did not pass the interceptors: its error is a status.
func Deny(w http.ResponseWriter, err error) {
	if s := status.Convert(err); s.Code() == codes.ResourceExhausted {
		w.Header().Set(HeaderRetryAfter, endpoint.RetryAfter(err))
		tooMany.write(w, s.Message())
		return
	}
	refuse(w, err)
}

// refuse answers with the HTTP equivalent of a gRPC status.
func refuse(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	if after := endpoint.RetryAfter(err); after != "" {
		w.Header().Set(HeaderRetryAfter, after)
	}
	if s.Code() == codes.Unauthenticated {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	refusal(endpoint.RefusalOf(err)).write(w, s.Message())
}

// write answers with the refusal, in OpenAI's form.
func (r refusal) write(w http.ResponseWriter, message string) {
	w.Header().Set(HeaderReason, r.Reason)
	write(w, r.Code, endpoint.Refusal(r).JSON(message))
}

// Destination is where to send the request. Its JSON is flat but for the headers and the prefill leg.
type Destination struct {
	ReplicaID  string `json:"replica_id"`
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Deployment string `json:"deployment,omitempty"`
	// Truncated: the pick rests on the beginning of the body only.
	Truncated bool `json:"truncated,omitempty"`
	// RequestHeaders are to be sent along with the request.
	RequestHeaders map[string]string `json:"request_headers,omitempty"`
	// Prefill is the replica that prefills the request, where it is sent in two legs; nil = it is not. It alone has what
	// follows: where its KV blocks are asked for, and its name in transfers.
	Prefill     *Destination `json:"prefill,omitempty"`
	KVBootstrap string       `json:"kv_bootstrap,omitempty"`
	KVEngineID  string       `json:"kv_engine_id,omitempty"`
}

func write(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails only on a connection that is gone
}

// Config is the endpoint's part of the server's config; a field that is zero has its default. Read once.
type Config struct {
	// Listen is the address to listen on; empty = there is no HTTP endpoint.
	Listen string `json:"listen,omitempty"`
	// MaxBodyBytes bounds how much of a body is read, the rest does not count; 1 KiB to 256 MiB, default 1 MiB. There are
	// at most as many connections as have 1 GiB of bodies.
	MaxBodyBytes int `json:"max_body_bytes,omitempty"`
	// ReadTimeout is how long the head of a request may take, and then its body, of which the part that arrived counts;
	// 10ms to 1h, default 5s.
	ReadTimeout policy.Duration `json:"read_timeout,omitempty"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 1<<20)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, policy.Duration(5*time.Second))
	return c
}

// Validate checks every field but Listen. The error names it.
func (c Config) Validate() error {
	c = c.WithDefaults()
	return cmp.Or(
		strict.Within("max_body_bytes", c.MaxBodyBytes, 1<<10, 1<<28),
		strict.Within("read_timeout", c.ReadTimeout, policy.Duration(10*time.Millisecond), policy.Duration(time.Hour)),
	)
}
