package policy_test

// Ray's tests of its routers are the measure of the policies here: each case that
// states a routing result is one test, TestRay… in the folder of its policy. These
// cases are not tests, since they are about Ray's own machinery:
//
//	case                                             why there is no test
//	RR: kwargs are ignored                           a config with an unknown field is refused instead: TestParseConfigRefuses
//	RR: 0 routing tasks after teardown               there are no tasks: the call picks; no pending request is tested
//	CH: 0 <= hash < 2^64                             by its type
//	CH: num_virtual_nodes "many"                     the parser refuses it: TestParseConfigRefuses
//	CH: backoff of 999 s, one task in backoff,       nothing backs off: a request waits in the queue and a release serves it at
//	    still pending 100 ms after the drain         once, which TestRayAllFullWaitsForThePrimary holds
//	CH: all full is not done in 20 ms                tested without time: the request is in the queue
//	CH: a burst resolves within 2 s                  tested without time, in a synctest bubble
//	CH: pending nil returns all candidates           there is no choice without a request
//	Pow2: without replicas the request stays         ErrNotConnected: a gRPC host hands the request to gRPC, which alone can
//	      pending                                    wake a connection
//	Pow2: locality retries do not sleep              the tiers are walked within one pick; their order is tested
//	Pow2: i+2 probes, entries added from probes,     no probes: a Router counts reservations; 3, 2, 1, 0 and never
//	      full entries probed again, deadlines by    below is tested
//	      backoff_index 0/10/2048, expired entries
//	Pow2: a died replica gets 0 probes in 10 picks   tested as 0 picks
//	Pow2: matching timeout of multiplexed models     the tiers are walked at once; a full holder is skipped
//	Prefix: probes, lookups per request, event-loop  prefixaffinity neither probes nor runs a loop
//	        gaps, eviction intervals
//	PrefixTree: LRU lists                            tested as what is forgotten first
//	KV: trackers, threads, task counts, ai-dynamo    the kv_aware policy's, where they state a result
//	LLMRouter, HAProxy                               the look-aside server's
