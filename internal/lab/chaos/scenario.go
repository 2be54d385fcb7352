package chaos

// A scenario is one kind of harm.
type scenario struct {
	// Name as in Options.Scenario, What it does, in a few words.
	Name, What string
	// apart: not part of "all"; processes: it shows more with engines that are processes.
	apart, processes bool
	// set changes the engines, the load and the channels' config before the run; may be nil.
	set func(s *stage, config map[string]any)
	run func(*stage) error
	// may are the outcomes that calls may have beside Served.
	may []Outcome
	// moves: in each step only the sessions of one replica may move.
	moves bool
}

var scenarios = []scenario{
	{
		Name: "rolling-restart", What: "every replica in turn drains, goes, and comes back empty",
		run: rollingRestart, moves: true,
	},
	{
		Name: "abort", What: "the same with replicas that cut their calls at SIGTERM",
		processes: true, set: grace(0), run: rollingRestart, may: []Outcome{Cut, SentTwice}, moves: true,
	},
	{
		Name: "outlast", What: "the same with replicas that drain, and streams that take longer than they may",
		set: outlast, run: rollingRestart, may: []Outcome{Cut, SentTwice},
	},
	{
		Name: "kill", What: "replicas are killed with SIGKILL, one after another, and come back empty",
		processes: true, run: killed, may: []Outcome{Cut, SentTwice}, moves: true,
	},
	{
		Name: "hang", What: "a replica is stopped with SIGSTOP: it takes calls and never answers; then it goes on",
		processes: true, run: hang, may: []Outcome{TimedOut},
	},
	{
		Name: "partition", What: "half of the replicas can no longer be reached, without notice; then they can",
		run: partition, may: []Outcome{TimedOut},
	},
	{
		Name: "reset", What: "connections are reset in the middle of streams, or ended with GOAWAY",
		run: resets, may: []Outcome{Cut, SentTwice},
	},
	{
		Name: "half-open", What: "a replica is taken away behind its connections' back, as if it had lost its power",
		run: halfOpen, may: []Outcome{Cut, TimedOut},
	},
	{
		Name: "go-away", What: "every replica in turn sends its clients GOAWAY",
		run: goAway, moves: true,
	},
	{
		Name: "slow", What: "a replica answers a second late and reads slowly",
		run: slow, may: []Outcome{TimedOut},
	},
	{
		Name: "scale", What: "the fleet grows tenfold, and shrinks again",
		run: scale,
	},
	{
		Name: "flood", What: "twenty times the calls, more than the replicas admit",
		set: bounded, run: flood, may: []Outcome{Refused, TimedOut},
	},
	{
		Name: "soak", What: "drains, kills, resets and changes of the fleet in turn, for long", apart: true,
		run: soak, may: []Outcome{Cut, SentTwice},
	},
}

// Scenario is a name and what it stands for.
type Scenario struct{ Name, What string }

// Scenarios are those that there are; All those that are run where all are asked for.
func Scenarios() (list []Scenario) {
	for _, sc := range scenarios {
		list = append(list, Scenario{sc.Name, sc.What})
	}
	return list
}

// All are the names of the scenarios that belong together; those that take long stand apart.
func All() (names []string) {
	for _, sc := range scenarios {
		if !sc.apart {
			names = append(names, sc.Name)
		}
	}
	return names
}

// NeedsProcesses reports whether a scenario sends signals to the engines, which only [Processes] understand; those in
// process do what comes next to it.
func NeedsProcesses(name string) bool {
	sc, err := find(name)
	return err == nil && sc.processes
}
