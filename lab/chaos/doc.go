// Package chaos breaks replicas under a steady load and counts what becomes of the calls.
//
// # Rule
//
// A run starts simulated engines, each behind a [faultproxy.Proxy], and channels that share nothing, and
// sends them calls at even distances, whatever becomes of those before: unary and server-streaming in turn,
// each with the prompt of one of a fixed number of sessions, every session once in a round. Sessions hold
// their prompt and nothing else, so a replica that is cold, or that a session does not belong to, shows in
// the cached tokens. When the caches are warm a calm is measured; then the scenario does its harm, step by
// step, each when the rounds before have been answered and every channel is connected again, never by the
// clock; then calm again.
//
// # What is counted
//
// Every call has one outcome, see [Outcome]: what failed although it could have been served is lost, and that
// must never be. A session has moved when a replica served it that is not its last and had to compute its
// prompt: by the step that took the prompt from there, if one did, else by the step in which it was sent
// there. A call is misrouted when a policy that is to keep sessions together served it elsewhere while
// nothing had happened to its replica. Load is back when no window of calls falls on the replicas more
// unevenly than the worst of the calm, the hit ratio when a window has 95 % of the calm's.
//
// A replica that comes back reports another instance, as those of server/replica do.
//
// # Engines
//
// [InProcess] engines are quick and many; [Processes] can be killed with SIGKILL and stopped with SIGSTOP.
//
// # Complexity
//
// One goroutine per call under way, at most [Options].InFlight of them; some 200 bytes are kept per call.
package chaos
