package sim

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// How fast engines may run in this process.
const (
	// MaxSpeed keeps a pass of an engine above a quarter of a millisecond: timers are no finer.
	MaxSpeed = 60
	// enough is the engine time that a policy gets if there is time for it.
	enough = 5 * time.Minute
	// workPerCPU is how much may go through sockets per second and CPU, in tokens of output. It is measured:
	// 80,000 a second take about half of one, both ends and the engines included.
	workPerCPU = 60_000
	// promptWeight is what a token of a prompt costs of that.
	promptWeight = 1. / 50
	// warmUpShare is how much of the engine time fills the caches and is not measured.
	warmUpShare = 1. / 3
)

// Demo asks for a plan: how to load Replicas simulated engines with a workload for Share of our time.
type Demo struct {
	Replicas int
	// Workload names one of workload.Names; Unshared and Seed are as in its Spec.
	Workload string
	Unshared float64
	Seed     uint64
	// Load is the part of the capacity to use.
	Load float64
	// Share is the time for one policy.
	Share time.Duration
	// Speed of the engines; 0 means as fast as gives each policy 5 minutes of engine time, at most MaxSpeed
	// and what half of this machine can carry.
	Speed float64
	// Engine is what each engine is.
	Engine enginesim.Config
}

// Plan is what to send.
type Plan struct {
	Requests []workload.Request
	// Measured is how many of them arrive after WarmUp, Unshared the share of their tokens that an unbounded
	// cache would not hold.
	Measured int
	Unshared float64
	// Speed, Length and WarmUp are in engine time.
	Speed          float64
	Length, WarmUp time.Duration
}

// Plan finds the capacity of the fleet and generates the workload.
func (d Demo) Plan(ctx context.Context) (*Plan, error) {
	if d.Share <= 0 {
		return nil, fmt.Errorf("sim: %v is no time", d.Share)
	}
	for speed := d.speed(); ; {
		p, err := d.at(ctx, speed)
		if err != nil {
			return nil, err
		}
		most := workPerCPU * float64(runtime.GOMAXPROCS(0)) / p.work()
		if d.Speed != 0 || speed <= most*1.1 || speed <= 1 {
			return p, nil
		}
		speed = max(most, 1)
	}
}

// speed is the speed if the machine can carry it.
func (d Demo) speed() float64 {
	if d.Speed != 0 {
		return d.Speed
	}
	return min(max(enough.Seconds()/d.Share.Seconds(), 1), MaxSpeed)
}

// at is the plan at a speed.
func (d Demo) at(ctx context.Context, speed float64) (*Plan, error) {
	length := max(time.Duration(float64(d.Share)*speed).Round(time.Second), time.Second)
	p := &Plan{Speed: speed, Length: length, WarmUp: time.Duration(float64(length) * warmUpShare)}
	traffic := Traffic{Workload: workload.Spec{Name: d.Workload, Duration: length, Unshared: d.Unshared}}
	capacity, err := Capacity(ctx, Search{
		Traffic: traffic, First: float64(d.Replicas), Replicas: d.Replicas, Engines: []enginesim.Config{d.Engine},
		WarmUp: p.WarmUp,
	})
	if err != nil {
		return nil, err
	}
	if p.Requests, err = traffic.Requests(capacity*d.Load, d.Seed); err != nil {
		return nil, err
	}
	before := slices.IndexFunc(p.Requests, func(q workload.Request) bool { return q.At >= p.WarmUp })
	if before < 0 {
		return nil, fmt.Errorf("no request of %s arrives in %v of engine time: give it more time or speed", d.Workload,
			p.Length)
	}
	p.Measured = len(p.Requests) - before
	p.Unshared = workload.Unshared(p.Requests, before)
	return p, nil
}

// work is what the plan costs this machine per second of engine time.
func (p *Plan) work() float64 {
	w := 0.0
	for i := range p.Requests {
		w += float64(p.Requests[i].OutputTokens) + promptWeight*float64(p.Requests[i].PromptTokens)
	}
	return w / p.Length.Seconds()
}
