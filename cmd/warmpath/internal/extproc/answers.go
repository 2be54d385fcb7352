package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/warmpath/warmpath/internal/endpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// destinations are a pick and its fallbacks, as the gateway takes them: with the same value in header and metadata.
type destinations struct {
	headers  *extprocv3.HeaderMutation
	metadata *structpb.Struct
}

func destinationsOf(a *warmpathv1.ChooseReplicaResponse) *destinations {
	pick := a.GetReplica()
	addresses := pick.GetAddress()
	for _, r := range a.GetFallbacks() {
		addresses += "," + r.GetAddress()
	}
	fields := map[string]*structpb.Value{destination: structpb.NewStringValue(addresses)}
	inside := structpb.NewStructValue(&structpb.Struct{Fields: fields})
	h := []*corev3.HeaderValueOption{set(destination, addresses)}
	if pick.Rank != nil {
		h = append(h, set(warmpathv1.MetadataDataParallelRank, strconv.FormatUint(uint64(pick.GetRank()), 10)))
	}
	return &destinations{
		headers:  &extprocv3.HeaderMutation{SetHeaders: h},
		metadata: &structpb.Struct{Fields: map[string]*structpb.Value{namespace: inside}},
	}
}

// set replaces a header, also one that the client has sent.
func set(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// common is the part of an answer that has the pick, nil without one.
func common(p *destinations) *extprocv3.CommonResponse {
	if p == nil {
		return nil
	}
	return &extprocv3.CommonResponse{HeaderMutation: p.headers, ClearRouteCache: true}
}

func requestHeadersAnswer(p *destinations) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: common(p)},
	}}
}

func requestBodyAnswer(p *destinations) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: common(p)},
	}}
}

func requestChunkAnswer(chunk []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: streamed(chunk, end),
	}}
}

func responseChunkAnswer(chunk []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: streamed(chunk, end),
	}}
}

// streamed is a chunk as it came.
func streamed(chunk []byte, end bool) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: chunk, EndOfStream: end},
		},
	}}}
}

// responseHeadersAnswer reports the endpoint that has served, unless it is "".
func responseHeadersAnswer(served string) *extprocv3.ProcessingResponse {
	r := new(extprocv3.HeadersResponse)
	if served != "" {
		r.Response = &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
			SetHeaders: []*corev3.HeaderValueOption{set(testServed, served)},
		}}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: r}}
}

// Answers that leave everything as it is.
var (
	requestTrailersAnswer = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: new(extprocv3.TrailersResponse),
	}}
	responseBodyAnswer = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: new(extprocv3.BodyResponse),
	}}
	responseTrailersAnswer = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: new(extprocv3.TrailersResponse),
	}}
)

// refusalOf answers the client with an error: 503 if no replica is eligible, 429 if all are full. A client of gRPC gets
// its status.
func refusalOf(err error, isGRPC bool) *extprocv3.ProcessingResponse {
	code, refusal := status.Code(err), endpoint.RefusalOf(err)
	h := []*corev3.HeaderValueOption{set("content-type", "application/json")}
	if code == codes.ResourceExhausted {
		refusal.Code = int(typev3.StatusCode_TooManyRequests)
		h = append(h, set("retry-after", "1"))
	}
	message := status.Convert(err).Message()
	answer := &extprocv3.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode(refusal.Code)}, Details: "warmpath_" + refusal.Reason,
		Body: refusal.JSON(message),
	}
	if isGRPC { // its message is a header
		answer.GrpcStatus, answer.Body, h = &extprocv3.GrpcStatus{Status: uint32(code)}, []byte(message), nil
	}
	h = append(h, set(strings.ToLower(endpoint.HeaderReason), refusal.Reason))
	answer.Headers = &extprocv3.HeaderMutation{SetHeaders: h}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: answer,
	}}
}
