// Package kvtransfer hands the KV of a prompt from a simulated prefill engine to a simulated decode engine, over TCP.
// It moves no KV: it moves the moments at which real engines would have it.
//
// # Rule
//
// A [Source] belongs to a prefill engine. The engine announces a leg under a key and later calls [Leg.Ready]: the KV is
// computed and held. A decode engine opens a [Pull] with the key and the parameters that it was given. It waits until
// the KV is ready, and reports when it has all of it, which frees the source. KV that no decode engine is pulling is
// freed when the lease is over, and counts as expired. The first decode engine that has all of it ends the leg for
// the others.
//
// The source compares the parameters with those that it gave out, byte by byte, and refuses others with [ErrParams]. A
// key that the source does not have is refused at once, or after the timeout if the pull waits for it, as decode
// engines do that may begin before the prefill engine.
//
// # Wire
//
// One connection a pull, JSON lines: {"key","params","wait"} from the decode engine, {"ready":true,"content"} or
// {"error"} back, then {"done":true}. An end that is gone is a connection that is closed.
//
// # Guarantees
//
// Close ends every leg and every pull, and no goroutine is left. No lock is held while anything waits.
package kvtransfer
