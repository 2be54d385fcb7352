// Package drive puts open-loop load on model servers through warmpath's own channels, and measures.
//
// The rule. A workload's requests are sent at their time, whatever became of those before, each on one of
// several channels drawn at random (seeded, so every policy gets the same draws). The channels share nothing:
// each is what one process of an application would have. [Run] does it for one policy, [Fleet] is a fleet of simulated
// engines on loopback sockets, [Process] a server in a process of its own. [Result] is what demo, replay and the
// simulator report.
//
// Time. Everything is reported in the engines' time: a workload's second takes 1/Speed of ours. Simulated engines
// say in their trailers when the request arrived, gave its first token and ended; that is what counts, plus
// the time that the request waited in the channel's queue, times Speed. The way through sockets and
// schedulers of this machine, which at a speed of 60 would count sixtyfold, is left out, but not hidden:
// how late the generator sent is reported as lag. Of servers without these trailers, and of calls that
// needed more than one attempt, the client's own clock counts, times Speed.
//
// Complexity. One goroutine per request under way; a sample of some 150 bytes per request is kept.
package drive
