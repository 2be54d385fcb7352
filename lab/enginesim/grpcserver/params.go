package grpcserver

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// kvParams are vLLM's parameters of a KV connector, as far as an engine reads them.
type kvParams struct {
	DoRemoteDecode  bool `json:"do_remote_decode"`
	DoRemotePrefill bool `json:"do_remote_prefill"`
	// Of NIXL.
	RemoteRequestID string          `json:"remote_request_id"`
	RemoteEngineID  string          `json:"remote_engine_id"` // of Mooncake too
	RemoteHost      string          `json:"remote_host"`
	RemotePort      int             `json:"remote_port"`
	RemoteBlockIDs  json.RawMessage `json:"remote_block_ids"`
	// Of Mooncake.
	TransferID          string `json:"transfer_id"`
	RemoteBootstrapAddr string `json:"remote_bootstrap_addr"`
}

// structLeg is jsonLeg for parameters in a Struct; nil stands for none.
func (k *kvSide) structLeg(p *structpb.Struct, id string, output int) (*leg, error) {
	if p == nil {
		return nil, k.whole()
	}
	l, err := k.jsonLeg(canonical(p), id, output)
	if l != nil {
		l.inStruct = true
	}
	return l, err
}

// canonical is a Struct as JSON with sorted keys, so that equal Structs are equal strings.
func canonical(p *structpb.Struct) string {
	b, _ := json.Marshal(p.AsMap()) // of nil, bool, float64, string, lists and maps
	return string(b)
}

// jsonLeg is the leg of a request with these parameters; "" stands for none. It returns no leg for a whole request, and
// for an engine without a role, which ignores them.
func (k *kvSide) jsonLeg(params, id string, output int) (*leg, error) {
	if k == nil {
		return nil, nil
	}
	if params == "" {
		return nil, k.whole()
	}
	refused := func(format string, args ...any) (*leg, error) {
		return nil, status.Errorf(codes.InvalidArgument, "kv_transfer_params: "+format, args...)
	}
	var p kvParams
	if err := json.Unmarshal([]byte(params), &p); err != nil {
		return refused("%v", err)
	}
	switch {
	case k.Connector == Rooms:
		return refused("the engine has bootstrap rooms")
	case p.DoRemoteDecode == p.DoRemotePrefill:
		return refused("one of do_remote_decode and do_remote_prefill must be true")
	case p.DoRemoteDecode && k.Role == Decode, p.DoRemotePrefill && k.Role == Prefill:
		return refused("the engine's role is %s", k.Role)
	case p.DoRemoteDecode && output != 1:
		return refused("a prefill leg has %d output tokens, not 1", output)
	case k.Connector == Mooncake:
		return k.mooncakeLeg(&p, refused)
	}
	l := &leg{side: k, prefill: p.DoRemoteDecode, own: id + "-" + strconv.FormatUint(k.srv.fresh.Add(1), 10)}
	switch whole := p.RemoteRequestID != "" && p.RemoteEngineID != "" && p.RemoteHost != "" && p.RemotePort != 0; {
	case l.prefill:
		return l, nil
	case !whole || len(p.RemoteBlockIDs) == 0:
		return refused("remote_request_id, remote_engine_id, remote_block_ids, remote_host and remote_port are required")
	}
	l.key, l.params = p.RemoteRequestID, params
	l.addr = net.JoinHostPort(p.RemoteHost, strconv.Itoa(p.RemotePort))
	return l, nil
}

// mooncakeLeg is the leg of a request with Mooncake's parameters.
func (k *kvSide) mooncakeLeg(p *kvParams, refused func(string, ...any) (*leg, error)) (*leg, error) {
	addr, http := strings.CutPrefix(p.RemoteBootstrapAddr, "http://")
	switch {
	case p.TransferID == "":
		return refused("transfer_id is required")
	case p.DoRemoteDecode:
		return &leg{side: k, prefill: true, own: "transfer/" + p.TransferID}, nil
	case p.RemoteEngineID == "" || !http:
		return refused("remote_engine_id and remote_bootstrap_addr, which begins with http://, are required")
	}
	return &leg{side: k, key: "transfer/" + p.TransferID, params: p.RemoteEngineID, addr: addr, wait: true}, nil
}

// answerParams are what a prefill leg answers: the parameters for the decode leg, written as Python does, so that they
// differ from what a Go program would write.
func (k *kvSide) answerParams(l *leg) string {
	tokens, size := len(l.tokens), k.srv.driver.Config().BlockSize
	ids := make([]string, (tokens+size-1)/size)
	for i := range ids {
		ids[i] = strconv.Itoa(i + 1)
	}
	addr := k.source.Addr()
	return fmt.Sprintf(`{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[%s]], `+
		`"remote_engine_id": %q, "remote_request_id": %q, "remote_host": %q, "remote_port": %d, "tp_size": 1, `+
		`"remote_num_tokens": %d, "remote_blocks_expiry_time": null}`,
		strings.Join(ids, ", "), k.EngineID, l.own, addr.IP.String(), addr.Port, tokens)
}

// asStruct is parameters as a Struct.
func asStruct(params string) *structpb.Struct {
	p := &structpb.Struct{}
	_ = p.UnmarshalJSON([]byte(params)) // answerParams wrote it
	return p
}
