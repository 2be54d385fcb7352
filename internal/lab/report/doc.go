// Package report shows what package drive measured: a table for a terminal, one sentence, an HTML page, a
// picture.
//
// The page and the picture are whole: they load nothing from anywhere. Charts are SVG. What is in them is
// computed from the results alone, also where these are not flattering.
package report
