package server

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
	"google.golang.org/grpc"
	channelzpb "google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// bearer sends a token, whatever the transport.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (b bearer) RequireTransportSecurity() bool { return false }

const (
	trustedToken = "trusted-0123456789"
	chatToken    = "only-chat-0123456789"
)

// tenants is a config with a trusted caller and one that may use a single deployment; its token is given as its digest.
const tenants = `
load_interval: 10s
principals:
- {name: ops, token: trusted-0123456789, trusted: true, register: true}
- {name: team, token: "sha256:b7e1aab7f76aa4d76b0de0ff2ba3d96c0b2b0e6ef1a3b5f0c9a1bb25bbec3ff2", deployments: [chat]}
deployments:
  chat: {register: true, models: [llama], policy: {kv_aware: {}}, shadow_policy: {round_robin: {}}, replicas: [{id: a, address: "10.0.0.1:1"}]}
  code: {models: [llama, qwen], policy: {round_robin: {}}, replicas: [{id: b, address: "10.0.0.2:1"}]}
`

func startTenants(t testing.TB) *fixture {
	d := digestOf(chatToken)
	return start(t, strings.Replace(tenants, "b7e1aab7f76aa4d76b0de0ff2ba3d96c0b2b0e6ef1a3b5f0c9a1bb25bbec3ff2", hex.EncodeToString(d[:]), 1))
}

func TestPermissions(t *testing.T) {
	f := startTenants(t)
	for _, tt := range []struct {
		token, deployment, model string
		code                     codes.Code
		want                     string // deployment, or part of the message
	}{
		{trustedToken, "chat", "", codes.OK, "chat"},
		{trustedToken, "", "qwen", codes.OK, "code"},
		{trustedToken, "", "llama", codes.InvalidArgument, "name one of chat, code"},
		{trustedToken, "none", "", codes.NotFound, "there are chat, code"},
		{chatToken, "chat", "", codes.OK, "chat"},
		{chatToken, "", "", codes.OK, "chat"},
		{chatToken, "", "llama", codes.OK, "chat"},
		{chatToken, "", "qwen", codes.NotFound, `no deployment serves the model "qwen"`},
		{chatToken, "code", "", codes.PermissionDenied, `may not use the deployment "code"`},
		{chatToken, "none", "", codes.PermissionDenied, `may not use the deployment "none"`},
		{"wrong-0123456789", "chat", "", codes.Unauthenticated, "the token is not known"},
		{"", "chat", "", codes.Unauthenticated, "a token is missing"},
	} {
		a, err := f.with(t, tt.token).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{
			Deployment: tt.deployment, Mode: query, Key: &warmpathv1.RequestKey{Model: tt.model},
		})
		require.Equal(t, tt.code, status.Code(err), "%+v: %v", tt, err)
		if err != nil {
			require.ErrorContains(t, err, tt.want)
		} else {
			require.Equal(t, tt.want, a.GetDeployment())
		}
	}
	for _, values := range [][]string{{"Bearer " + trustedToken, "Bearer " + trustedToken}, {"Basic x"}, {""}, {"Bearer"}} {
		md := metadata.MD{"authorization": values}
		_, err := f.pb.ChooseReplica(metadata.NewOutgoingContext(soon(t), md), &warmpathv1.ChooseReplicaRequest{})
		require.Equal(t, codes.Unauthenticated, status.Code(err), "%q", values)
	}
	_, err := services{Server: f.Server}.ChooseReplica(t.Context(), &warmpathv1.ChooseReplicaRequest{Deployment: "chat"})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "a front end that does not authenticate has no permissions")
}

// What a caller changes in a config that it has given is not in force before it is given again.
func TestGivenConfigsAreCopied(t *testing.T) {
	c := parse(t, "principals: [{name: x, token: xxxxxxxxxxxxxxxx, deployments: [e, d, code]}]\n"+
		"deployments: {chat: {register: true}, code: {register: true}, d: {register: true}, e: {register: true}}")
	s, err := New(c, Options{Logger: discard})
	require.NoError(t, err)
	f := serveFixture(t, s)
	code := func(deployment string) codes.Code {
		_, err := f.with(t, "xxxxxxxxxxxxxxxx").ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: deployment})
		return status.Code(err)
	}
	require.Equal(t, codes.PermissionDenied, code("chat"))
	for _, d := range []string{"code", "d", "e"} {
		require.Equal(t, codes.Unavailable, code(d), "it may, and there is no replica")
	}
	c.Principals[0].Deployments[0] = "chat"
	require.Equal(t, codes.PermissionDenied, code("chat"))
	c.Principals[0].Deployments = nil
	require.Equal(t, codes.PermissionDenied, code("chat"))
	require.NoError(t, f.Update(c))
	require.Equal(t, codes.Unavailable, code("chat"))
}

// All other methods authenticate too; health needs no token, and channelz is for trusted principals.
func TestEveryMethodAuthenticates(t *testing.T) {
	f := startTenants(t)
	conn := func(token string) *grpc.ClientConn { return f.as(t, insecure.NewCredentials(), token) }
	watched := func(token, deployment string) error {
		stream, err := f.with(t, token).WatchReplicas(soon(t))
		require.NoError(t, err)
		_ = stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x", Deployment: deployment}})
		_, err = stream.Recv()
		return err
	}
	chosen := func(token string) error {
		stream, err := f.with(t, token).ChooseReplicas(soon(t))
		require.NoError(t, err)
		_ = stream.Send(&warmpathv1.ChooseReplicasRequest{Choose: &warmpathv1.ChooseReplicaRequest{Deployment: "code"}})
		m, err := stream.Recv()
		if m.GetFailure() != nil {
			return status.Error(codes.Code(m.GetFailure().GetCode()), m.GetFailure().GetMessage())
		}
		return err
	}
	registered := func(token string) error {
		_, err := f.with(t, token).Register(soon(t), &warmpathv1.RegisterRequest{Deployment: "chat", Replica: &warmpathv1.Replica{Address: "r:1"}})
		return err
	}
	reflected := func(token string) error {
		stream, err := grpc_reflection_v1.NewServerReflectionClient(conn(token)).ServerReflectionInfo(soon(t))
		require.NoError(t, err)
		_ = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
		_, err = stream.Recv()
		return err
	}
	inspected := func(token string) error {
		_, err := channelzpb.NewChannelzClient(conn(token)).GetServers(soon(t), &channelzpb.GetServersRequest{})
		return err
	}
	lived := func(token string) error {
		_, err := f.with(t, token).ReportLife(soon(t), new(warmpathv1.ReportLifeRequest))
		return err
	}
	answer := func(token, deployment string) error {
		_, err := warmpathv1.NewStatusServiceClient(conn(token)).GetStatus(soon(t), &warmpathv1.GetStatusRequest{Deployment: deployment})
		return err
	}
	stored := func(token, deployment string) error {
		_, err := warmpathv1.NewStoreServiceClient(conn(token)).Get(soon(t), &warmpathv1.GetRequest{Deployment: deployment, Key: "k"})
		return err
	}
	for name, tt := range map[string]struct {
		err  error
		want codes.Code
	}{
		"status":                {answer(chatToken, "chat"), codes.OK},
		"status, other":         {answer(chatToken, "code"), codes.PermissionDenied},
		"status, no token":      {answer("", ""), codes.Unauthenticated},
		"store":                 {stored(chatToken, "chat"), codes.OK},
		"store, other":          {stored(chatToken, "code"), codes.PermissionDenied},
		"store, no token":       {stored("", "chat"), codes.Unauthenticated},
		"watch":                 {watched(chatToken, "chat"), codes.OK},
		"watch, other":          {watched(chatToken, "code"), codes.PermissionDenied},
		"watch, no token":       {watched("", "chat"), codes.Unauthenticated},
		"choose, other":         {chosen(chatToken), codes.PermissionDenied},
		"choose, no token":      {chosen(""), codes.Unauthenticated},
		"choose":                {chosen(trustedToken), codes.OK},
		"register":              {registered(trustedToken), codes.OK},
		"register, not allowed": {registered(chatToken), codes.PermissionDenied},
		"register, no token":    {registered(""), codes.Unauthenticated},
		"reflection":            {reflected(chatToken), codes.OK},
		"reflection, no token":  {reflected(""), codes.Unauthenticated},
		"channelz":              {inspected(trustedToken), codes.OK},
		"channelz, not trusted": {inspected(chatToken), codes.PermissionDenied},
		"channelz, no token":    {inspected(""), codes.Unauthenticated},
		"life":                  {lived(chatToken), codes.OK},
		"life, no token":        {lived(""), codes.Unauthenticated},
	} {
		require.Equal(t, tt.want, status.Code(tt.err), "%s: %v", name, tt.err)
	}
	_, err := healthpb.NewHealthClient(f.conn).Check(soon(t), new(healthpb.HealthCheckRequest))
	require.NoError(t, err)
}

// The requests of others are shown to trusted principals only.
func TestMatchesAreForTheTrusted(t *testing.T) {
	f := startTenants(t)
	request := &warmpathv1.ChooseReplicaRequest{Deployment: "chat", Key: hashed(64, 16, 0), Mode: warmpathv1.PickMode_PICK_MODE_COUNT}
	trusted, other := f.with(t, trustedToken), f.with(t, chatToken)
	_, err := trusted.ChooseReplica(soon(t), request)
	require.NoError(t, err)
	a, err := trusted.ChooseReplica(soon(t), request)
	require.NoError(t, err)
	require.Equal(t, "prefix_match", a.GetDecision().GetReason())
	require.Equal(t, uint32(1024), a.GetDecision().GetMatchedTokens())
	a, err = other.ChooseReplica(soon(t), request)
	require.NoError(t, err)
	require.Equal(t, "a", a.GetReplica().GetId())
	require.Equal(t, reasonWithheld, a.GetDecision().GetReason())
	require.Zero(t, a.GetDecision().GetMatchedTokens())
	require.Equal(t, int32(-1), a.GetDecision().GetPlace())
	require.Equal(t, uint32(1024), a.GetDecision().GetPromptTokens())

	unknown := proto64(t)
	a, err = other.ChooseReplica(soon(t), unknown)
	require.NoError(t, err)
	require.Equal(t, reasonWithheld, a.GetDecision().GetReason(), "that nothing matched is withheld too")

	state := func(token string) *warmpathv1.DeploymentStatus {
		pb := warmpathv1.NewStatusServiceClient(f.as(t, insecure.NewCredentials(), token))
		a, err := pb.GetStatus(soon(t), new(warmpathv1.GetStatusRequest))
		require.NoError(t, err)
		require.Equal(t, "chat", a.GetDeployments()[0].GetName())
		return a.GetDeployments()[0]
	}
	require.NotNil(t, state(trustedToken).GetIndex())
	require.Len(t, state(trustedToken).GetDecisions(), 2, "on a miss, and on a match")
	require.Nil(t, state(chatToken).GetIndex())
	require.NotNil(t, state(trustedToken).GetShadow())
	require.Nil(t, state(chatToken).GetShadow())
	require.Len(t, state(chatToken).GetDecisions(), 1)
	require.Equal(t, reasonWithheld, state(chatToken).GetDecisions()[0].GetReason())
	require.EqualValues(t, 4, state(chatToken).GetDecisions()[0].GetCount())
	_, err = warmpathv1.NewStatusServiceClient(f.as(t, insecure.NewCredentials(), chatToken)).GetStatus(soon(t), &warmpathv1.GetStatusRequest{Deployment: "code"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))

	h := f.deployment("chat").hosted.Load()
	h.changed([]policy.CacheChange{{Replica: "a", Rank: 0, BlockTokens: 16, Coarse: true, Stored: []uint64{7}}})
	f.tick("chat")
	sees := func(token string) (hashes bool) {
		stream, err := f.with(t, token).WatchReplicas(soon(t))
		require.NoError(t, err)
		require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{Start: &warmpathv1.WatchStart{ClientId: "x", Deployment: "chat", Index: true}}))
		m, err := stream.Recv()
		require.NoError(t, err)
		for _, c := range m.GetIndex().GetChanges() {
			require.EqualValues(t, 16, c.GetBlockTokens())
			hashes = hashes || len(c.GetStored())+len(c.GetRemoved()) > 0
		}
		return hashes
	}
	require.True(t, sees(trustedToken))
	require.False(t, sees(chatToken))
}

// proto64 is a request with a prompt that no cache has.
func proto64(t testing.TB) *warmpathv1.ChooseReplicaRequest {
	t.Helper()
	k := hashed(64, 16, 0)
	for i := range k.GetBlockHashes().Hashes {
		k.GetBlockHashes().Hashes[i] = uint64(i)<<32 + 99
	}
	return &warmpathv1.ChooseReplicaRequest{Deployment: "chat", Key: k, Mode: query}
}

// Ids that one principal chooses do not meet the same ids of another.
func TestPrincipalsAreApart(t *testing.T) {
	f := startTenants(t)
	reserve := &warmpathv1.ChooseReplicaRequest{
		Deployment: "chat", Mode: warmpathv1.PickMode_PICK_MODE_RESERVE, Key: &warmpathv1.RequestKey{RequestId: "same"},
	}
	one, err := f.with(t, trustedToken).ChooseReplica(soon(t), reserve)
	require.NoError(t, err)
	two, err := f.with(t, chatToken).ChooseReplica(soon(t), reserve)
	require.NoError(t, err)
	require.NotEqual(t, one.GetReservation().GetId(), two.GetReservation().GetId())
	require.False(t, two.GetReservation().GetRepeated())
	again, err := f.with(t, chatToken).ChooseReplica(soon(t), reserve)
	require.NoError(t, err)
	require.Equal(t, two.GetReservation().GetId(), again.GetReservation().GetId())
	require.True(t, again.GetReservation().GetRepeated())
	require.Equal(t, map[string]int{"a": 2}, f.ongoing("chat"))

	watch := func(token string) grpc.BidiStreamingClient[warmpathv1.WatchReplicasRequest, warmpathv1.WatchReplicasResponse] {
		stream, err := f.with(t, token).WatchReplicas(soon(t))
		require.NoError(t, err)
		require.NoError(t, stream.Send(&warmpathv1.WatchReplicasRequest{
			Start:        &warmpathv1.WatchStart{ClientId: "same", Deployment: "chat"},
			Reservations: &warmpathv1.ReservationReport{Number: 1, Loads: loadOf([3]int{1, 5, 5})},
		}))
		_, err = stream.Recv()
		require.NoError(t, err)
		return stream
	}
	watch(trustedToken)
	watch(chatToken)
	d := f.deployment("chat")
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Equal(t, map[uint32]replicaLoad{1: {10, 10}}, d.balance.ledger.loads())

	other, err := f.with(t, trustedToken).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Deployment: "code", Mode: warmpathv1.PickMode_PICK_MODE_RESERVE})
	require.NoError(t, err)
	life := &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{
		Reservation: other.GetReservation().GetId(), Stage: warmpathv1.LifeStage_LIFE_STAGE_RELEASED,
	}}}
	answer, err := f.with(t, chatToken).ReportLife(soon(t), life)
	require.NoError(t, err)
	require.Len(t, answer.GetUnknown(), 1)
	require.Equal(t, map[string]int{"b": 1}, f.ongoing("code"))
}

// No header without a valid token is accepted; every token that a config may have is.
func FuzzAuthorization(f *testing.F) {
	for _, s := range [][2]string{
		{"Bearer 0123456789abcdef", "0123456789abcdef"}, {"bearer  x", "sha256:" + strings.Repeat("ab", 32)}, {"Basic x", "sha256:zz"}, {"", ""},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, header, token string) {
		const only = "the-only-0123456789"
		g := newAuthenticator(discard)
		defer g.close()
		c := &Config{Principals: []Principal{{Name: "a", TokenFile: filepath.Join(t.TempDir(), "tokens")}}}
		write := func(token string) {
			require.NoError(t, os.WriteFile(c.Principals[0].TokenFile, []byte(token), 0o600))
		}
		write(only)
		require.NoError(t, g.set(c))
		if !strings.Contains(header, only) {
			c, err := g.identify([]string{header}, nil)
			require.Equal(t, codes.Unauthenticated, status.Code(err))
			require.Nil(t, c)
		}
		if _, err := parseToken(token); err != nil || strings.HasPrefix(token, "sha256:") {
			return
		}
		write(token)
		require.NoError(t, g.set(c))
		p, err := g.identify([]string{"Bearer " + token}, nil)
		require.NoError(t, err)
		require.Equal(t, "a", p.name)
	})
}

// A call without permission is refused before its message is read.
func TestCallsWithoutPermissionAreNotRead(t *testing.T) {
	f := startTenants(t)
	stream, err := f.as(t, insecure.NewCredentials(), "wrong").NewStream(soon(t), &grpc.StreamDesc{ClientStreams: true}, warmpathv1.RoutingService_ChooseReplica_FullMethodName)
	require.NoError(t, err)
	require.Equal(t, codes.Unauthenticated, status.Code(stream.RecvMsg(new(warmpathv1.ChooseReplicaResponse))))
}

// previews counts the previews of the policy "previews".
var previews atomic.Int64

func init() {
	policy.Register("previews", func(struct{}) (policy.Policy, error) {
		first := func(q *policy.Request, v policy.View) policy.Decision {
			for _, r := range v.Replicas() {
				if v.Available(q, r) {
					return policy.To(r, "first")
				}
			}
			return policy.Decision{}
		}
		return policy.Policy{Choose: first, Preview: func(q *policy.Request, v policy.View) policy.Decision {
			previews.Add(1)
			return first(q, v)
		}}, nil
	})
}

// Candidates that are withheld from an untrusted principal are not computed for it.
func TestCandidatesOfUntrustedPrincipals(t *testing.T) {
	f := start(t, strings.Replace(manyReplicas(300), "    replicas:", "    policy: {previews: {}}\n    replicas:", 1)+`
principals:
- {name: ops, token: trusted-0123456789, trusted: true}
- {name: team, token: only-chat-0123456789}
`)
	for token, most := range map[string]int64{trustedToken: 256, chatToken: 3} {
		previews.Store(0)
		a, err := f.with(t, token).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Mode: query, MaxCandidates: 256})
		require.NoError(t, err)
		require.Equal(t, most, previews.Load())
		require.Equal(t, most == 256, len(a.GetCandidates()) == 256)
	}
}

// The end of a session is reported by its hash alone, and frees what the deployments of the principal keep of it.
func TestSessionsEnd(t *testing.T) {
	const x, y = "principal-x-0123456789", "principal-y-0123456789"
	config := func(draining string) string {
		return `
principals: [{name: first, token: ` + x + `, deployments: [chat]}, {name: second, token: ` + y + `, deployments: [code]}]
deployments:
  chat: {policy: {consistent_hash: {}}, replicas: [{id: a, address: "10.0.0.1:1"` + draining + `}, {id: b, address: "10.0.0.2:1"}]}
  code: {policy: {round_robin: {}}, replicas: [{id: a, address: "10.0.0.1:1"}]}
`
	}
	f := start(t, config(""))
	home := func(session string) string {
		key := &warmpathv1.RequestKey{Session: session}
		a, err := f.with(t, x).ChooseReplica(soon(t), &warmpathv1.ChooseReplicaRequest{Key: key})
		require.NoError(t, err)
		return a.GetReplica().GetId()
	}
	session := ""
	for session == "" || home(session) != "a" {
		session += "s"
	}
	require.NoError(t, f.Update(parse(t, config(", draining: true"))))
	require.Equal(t, "a", home(session), "it is kept")
	ends := &warmpathv1.ReportLifeRequest{Lives: []*warmpathv1.LifeReport{{EndedSession: xxh3.HashString(session)}}}
	for _, tt := range []struct{ token, home string }{{y, "a"}, {x, "b"}} {
		a, err := f.with(t, tt.token).ReportLife(soon(t), ends)
		require.NoError(t, err)
		require.Empty(t, a.GetUnknown())
		require.Equal(t, tt.home, home(session))
	}
}
