// Package matrix runs many simulations, keeps the result of each, and compares policies over all of them.
//
// # Rule
//
// A [Cell] is one situation: a workload at a share of the capacity, a fleet, clients and what they share. [Builtin]
// varies one factor of [Base] at a time, and adds corners where a policy might lose; [Read] takes cells of your own
// from a file. Every cell is run with every policy and every seed. Policies that are proxies in real life are run
// with one client too where the cell has proxies.
//
// Each run is a file in a directory, written when the run has ended. A run whose file is there, made by the same
// program from the same arguments, is not run again: what was interrupted goes on where it stood. The same seed of a
// cell is the same requests for all policies, and the first seed of every cell comes before the second of any.
//
// [Results.Markdown] prints the geometric means over the cells with 64 clients, the figures of each cell, and at the
// end the figures in which the policies in question are worse than 1.03 × those of the best rule with the same
// information: as many clients, the same sharing, KV events only for policies that have them. Ratios to that rule,
// and to the best policy with one client in the cells that differ only in clients and sharing, stand beside the
// figures. Cells under pressure are not in the geometric means: round robin does not cope with them. Baselines
// make nothing of a shared index, round robin nothing of shared load either.
//
// # Figures
//
// Means over the seeds; ± is half of the spread, which is the largest seed less the smallest. A ratio is mean ÷ round
// robin's mean of the same cell; less is better for times, more for goodput. A goodput below one per cent counts as
// one per cent, so that a policy that answers no call in time does not decide a product by itself. Cached tokens have
// no ratio, for round robin may have none: their mean is over the cells.
//
// Another seed is other requests, with which a nearly full fleet may take twice as long. Policies are
// therefore compared over the seeds that all of them have. In a cell a policy is worse than another, beyond
// the spread, if the mean over the seeds of the factor by which it is worse, less half of the spread of these
// factors, is more than 1.03.
//
// # Complexity
//
// One goroutine a worker; a worker holds the requests of one cell and one run over them.
//
// # Guarantees
//
// The figures of a run do not depend on the machine, the time, or what runs beside it.
package matrix
