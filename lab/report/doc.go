// Package report shows what package drive measured: tables for a terminal or as CSV, one sentence, and an HTML page.
//
// The page loads nothing and has no script: package page draws its charts. It shows what the results are, also where
// they are not flattering.
package report
