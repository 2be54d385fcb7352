package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver/manual"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/lab/drive"
)

// Options say what to break and under what load. Scenario and Policy are required.
type Options struct {
	// Scenario is one of Scenarios, Policy a policy of the product with its defaults.
	Scenario, Policy string
	// Clients is the number of channels, Replicas that of engines; 0 means 1 and 8.
	Clients, Replicas int
	// Rate is calls per second, Sessions how many there are, PromptTokens how long the prompt of each is, OutputTokens
	// how long an answer; 0 means 200, 128, 2,048 and 16.
	Rate                                 float64
	Sessions, PromptTokens, OutputTokens int
	// Calm is how many rounds the calm before and after lasts; 0 means 2.
	Calm int
	// Timeout ends a call, Late is when its first message counts as late; 0 means 5 s and 1 s.
	Timeout, Late time.Duration
	// Most is the fleet's size at the top of the scenario scale; 0 means 80. Turns is how often soak changes
	// something; 0 means 60.
	Most, Turns int
	// InFlight is how many calls are under way at most; 0 means 2,000. Calls that find no room within a
	// second are not sent, and the result counts them.
	InFlight int
	// Preset, Speed and KVTokens are the engines'; Speed 0 means 4, KVTokens 0 three times an even share of the sessions.
	Preset   string
	Speed    float64
	KVTokens int
	// Launch starts engines; nil means InProcess. The replicas that scale adds are always in process.
	Launch Launcher
	// Config are more fields of the channels' config, Dial more options for them.
	Config map[string]any
	Dial   []grpc.DialOption
	Seed   uint64
	// Log is called for every step, Progress ten times a second, each by a goroutine of its own; nil means no call.
	Log      func(string)
	Progress func(drive.Progress)
}

func (o *Options) fill() {
	o.Clients, o.Replicas = cmp.Or(o.Clients, 1), cmp.Or(o.Replicas, 8)
	o.Most, o.Turns = cmp.Or(o.Most, 80), cmp.Or(o.Turns, 60)
	o.Rate, o.Sessions = cmp.Or(o.Rate, 200), cmp.Or(o.Sessions, 128)
	o.PromptTokens, o.OutputTokens = cmp.Or(o.PromptTokens, 2048), cmp.Or(o.OutputTokens, 16)
	o.Calm, o.InFlight = cmp.Or(o.Calm, 2), cmp.Or(o.InFlight, 2000)
	o.Timeout, o.Late = cmp.Or(o.Timeout, 5*time.Second), cmp.Or(o.Late, time.Second)
	o.Speed = cmp.Or(o.Speed, 4)
	o.KVTokens = cmp.Or(o.KVTokens, 3*o.Sessions*(o.PromptTokens+freshTokens)/o.Replicas)
	if o.Launch == nil {
		o.Launch = InProcess
	}
}

// Run runs one scenario and counts. An error means that it could not be run to its end; what was promised and not kept
// is in the result.
func Run(ctx context.Context, o Options) (*Result, error) {
	o.fill()
	sc, err := Find(o.Scenario)
	if err != nil {
		return nil, err
	}
	if o.Clients < 1 || o.Replicas < 2 || o.Sessions < 1 || !(o.Rate > 0) || o.PromptTokens < 1 || o.OutputTokens < 1 {
		return nil, errors.New("chaos: it takes a client, two replicas, a session, a positive rate and tokens")
	}
	s := &stage{Options: &o, ctx: ctx, touched: map[string]time.Duration{}}
	s.spec = Spec{
		Preset: o.Preset, KVTokens: o.KVTokens, Speed: o.Speed, Grace: time.Minute, KVEvents: o.Policy == "kv_aware",
	}
	config := map[string]any{"policy": map[string]any{o.Policy: struct{}{}}}
	maps.Copy(config, o.Config)
	s.load = &load{Options: &o, slots: make(chan struct{}, o.InFlight)}
	s.load.setRate(o.Rate)
	if sc.set != nil {
		sc.set(s, config)
	}
	if s.replicas, err = startReplicas(ctx, 0, o.Replicas, s.spec, o.Launch); err != nil {
		return nil, err
	}
	defer func() { closeReplicas(s.replicas) }()
	defer s.hangUp()
	if err := s.dial(config); err != nil {
		return nil, err
	}
	if err := s.play(sc); err != nil {
		return nil, err
	}
	r := s.judge(sc)
	r.Leaked = s.leaked()
	r.check(sc)
	return r, nil
}

// dial makes the channels, each with metrics of its own.
func (s *stage) dial(config any) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return err
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), client.WithConfig(string(raw)),
		client.WithLogger(slog.New(slog.DiscardHandler)), // what goes wrong is in the result
	}, s.Dial...)
	for range s.Clients {
		fleet, reader := manual.NewBuilderWithScheme("chaos"), sdkmetric.NewManualReader()
		s.resolvers, s.meters = append(s.resolvers, fleet), append(s.meters, reader)
		meter := client.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		cc, err := client.New(fleet.Scheme()+":///", append(options, grpc.WithResolvers(fleet), meter)...)
		if err != nil {
			return err
		}
		s.load.channels = append(s.load.channels, cc)
		cc.Connect()
	}
	s.setFleet(s.replicas)
	return s.connected(s.replicas...)
}

func (s *stage) hangUp() {
	for _, cc := range s.load.channels {
		cc.Close() //nolint:errcheck // the only error is that it was closed before.
	}
}

// play puts the load on, lets the scenario do its harm, and takes the load off again.
func (s *stage) play(sc *Scenario) error {
	sending, stop := context.WithCancel(s.ctx)
	defer stop()
	s.load.start = time.Now()
	var loading sync.WaitGroup
	loading.Go(func() { s.load.run(s.ctx, sending) })
	if s.Progress != nil {
		defer drive.Reporting(func() { s.Progress(s.load.progress()) })()
	}
	err := s.acts(sc)
	stop()
	loading.Wait()
	return errors.Join(err, s.ctx.Err())
}

// acts are warm-up, calm, harm and calm.
func (s *stage) acts(sc *Scenario) error {
	s.log("warm-up")
	if err := s.rounds(s.Calm + 1); err != nil {
		return err
	}
	s.log("calm")
	s.calm = s.load.now()
	if err := s.rounds(s.Calm); err != nil {
		return err
	}
	if err := sc.run(s); err != nil {
		return err
	}
	s.steps = append(s.steps, s.load.now())
	s.log("calm again")
	return s.rounds(s.Calm + 1)
}
