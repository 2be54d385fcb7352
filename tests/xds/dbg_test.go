package xds
import ("testing";"fmt";"context";"time"
"google.golang.org/grpc"
"google.golang.org/grpc/credentials/insecure"
testpb "google.golang.org/grpc/interop/grpc_testing"
"github.com/warmpath/warmpath/client")
func TestDbg(t *testing.T){
	rs := replicas(t, 2)
	c := manage(t)
	c.publish(t, map[string]value{"policy": map[string]value{"round_robin": map[string]value{}}}, nil, rs...)
	cc, err := client.New("xds:///"+listener, grpc.WithTransportCredentials(insecure.NewCredentials()), c.resolver(t))
	if err!=nil {t.Fatal(err)}
	defer cc.Close()
	for range 3 {
	ctx,_:=context.WithTimeout(context.Background(),2*time.Second)
	var d client.Decision
	r,err:=testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(ctx,&d),&testpb.SimpleRequest{})
	fmt.Println(r,err,d)
	ctx,_=context.WithTimeout(context.Background(),2*time.Second)
	r,err=testpb.NewTestServiceClient(cc).UnaryCall(client.WithPin(ctx,rs[0].addr),&testpb.SimpleRequest{})
	fmt.Println(r,err)
	}
}
